"""Which variables are decayed and which are adapted: resolves exclusions to flags, and prints them as a table."""

import re
import warnings

import keras


def path_of(variable):
    """`keras.Variable.path`; for a bare `tf.Variable` its name without the output number."""
    return getattr(variable, "path", None) or variable.name.split(":")[0]


def as_list(exclusions, argument):
    """`None`, one item or several, as a list; raises TypeError on what is neither pattern, variable nor predicate."""
    if exclusions is None:
        return None
    if not isinstance(exclusions, (list, tuple, set)):
        exclusions = [exclusions]
    for item in exclusions:
        if not (isinstance(item, str) or callable(item) or is_variable(item)):
            raise TypeError(
                f"`{argument}` takes regular expressions, variables or predicates. "
                f"Received an item of type {type(item).__name__}: {item!r}."
            )
        if isinstance(item, str):
            re.compile(item)
    return list(exclusions)


def is_variable(item):
    """Whether this is a variable of Keras or of TensorFlow."""
    return isinstance(item, keras.Variable) or hasattr(item, "assign_add")


def excluded(variables, exclusions, argument):
    """One bool per variable: does any of `exclusions` name it?

    Raises ValueError if none of the exclusions matches anything (and warns of those that are idle beside others that
    match): a pattern written for other names would otherwise decay every bias, and say nothing.
    """
    if not exclusions:
        return [False] * len(variables)
    hits = [[matches(item, variable) for variable in variables] for item in exclusions]
    idle = [item for item, row in zip(exclusions, hits) if not any(row)]
    if len(idle) == len(exclusions):
        paths = "\n  ".join(path_of(v) for v in variables)
        raise ValueError(
            f"No variable matches `{argument}`={exclusions!r}, which looked at these paths:\n  {paths}\n"
            "Give regular expressions that are found in these paths, or [] to exclude nothing."
        )
    for item in idle:
        warnings.warn(f"{item!r} in `{argument}` matches no variable.", stacklevel=4)
    return [any(column) for column in zip(*hits)]


def matches(item, variable):
    """Whether one exclusion names `variable`: a regex found in its path, the variable itself, or a true predicate."""
    if isinstance(item, str):
        return re.search(item, path_of(variable)) is not None
    if is_variable(item):
        return item is variable or getattr(variable, "value", None) is item
    return bool(item(variable))


def table(variables, decayed, adapted):
    """The choice as text, one line a variable."""
    rows = [("variable", "shape", "weight decay", "layer adaptation")]
    for variable, decays, adapts in zip(variables, decayed, adapted):
        shape = "x".join(str(n) for n in variable.shape) or "scalar"
        rows.append((path_of(variable), shape, "yes" if decays else "-", "yes" if adapts else "-"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join(c.ljust(n) for c, n in zip(row, widths)).rstrip() for row in rows)
