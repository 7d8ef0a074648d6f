"""Which variables an exclusion names, and the table of what is decayed and what is adapted."""

import re
import warnings

import keras


def path_of(variable):
    """`keras.Variable.path`; for a bare `tf.Variable` its name without the output number."""
    return getattr(variable, "path", None) or variable.name.split(":")[0]


def as_list(exclusions):
    """None, one exclusion or several, as a list."""
    if exclusions is None:
        return []
    if isinstance(exclusions, (list, tuple, set)):
        return list(exclusions)
    return [exclusions]


def check(exclusions, argument):
    """Raises TypeError on an item that is neither regular expression, variable nor predicate."""
    for item in as_list(exclusions):
        if isinstance(item, str):
            re.compile(item)
        elif not (callable(item) or is_variable(item) or isinstance(item, int)):
            raise TypeError(
                f"`{argument}` takes regular expressions, variables and predicates of a variable. "
                f"Received an item of type {type(item).__name__}: {item!r}."
            )


def to_be_saved(exclusions, variables, argument):
    """The exclusions with positions, as integers, for variables and predicates.

    A position means the same in a model that is loaded, as it does for the slots; a path need not.
    Raises ValueError if positions are needed and the variables are not yet known (None).
    """
    if exclusions is None:
        return None
    saved = []
    for item in as_list(exclusions):
        if isinstance(item, (str, int)):
            saved.append(item)
        elif variables is None:
            raise ValueError(
                f"`{argument}` holds {item!r}, which can be saved only once the optimizer was "
                "built. Call `optimizer.build(variables)` before, or give regular expressions."
            )
        else:
            saved += [i for i, v in enumerate(variables) if matches(item, v)]
    return saved


def is_variable(item):
    """Whether this is a variable of Keras or of TensorFlow."""
    return isinstance(item, keras.Variable) or hasattr(item, "assign_add")


def excluded(variables, exclusions, argument):
    """One bool per variable: does any of `exclusions` name it?

    Raises ValueError if none of the exclusions names a variable, and warns of one that is idle
    beside others: a pattern written for other names would decay every bias, and say nothing.
    """
    exclusions = as_list(exclusions)
    if not exclusions:
        return [False] * len(variables)
    hits = [
        [item == i if isinstance(item, int) else matches(item, v) for i, v in enumerate(variables)]
        for item in exclusions
    ]
    idle = [item for item, row in zip(exclusions, hits) if not any(row)]
    if len(idle) == len(exclusions):
        paths = "\n  ".join(path_of(v) for v in variables)
        raise ValueError(
            f"No variable matches `{argument}`={exclusions!r} among these paths:\n  {paths}\n"
            "Give regular expressions that are found in these paths, or [] to exclude nothing."
        )
    for item in idle:
        warnings.warn(f"{item!r} in `{argument}` matches no variable.", stacklevel=4)
    return [any(column) for column in zip(*hits)]


def matches(item, variable):
    """Whether one exclusion, a pattern, variable or predicate, names `variable`."""
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
