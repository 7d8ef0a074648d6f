r"""Builds pre-training records with Apache Beam: on Flink, Spark, Dataflow, or here.

    python -m official_bert.build_with_beam 16 --input_file='gs://b/texts/*.txt' \
        --output_file=gs://b/records/wiki.tfrecord --vocab_file=gs://b/vocab.txt \
        --num_shards=256 -- --runner=FlinkRunner --flink_master=HOST:8081

The number of parts comes first, then the flags of `create_pretraining_data`, then `--` and Beam's
own. The pipeline runs that command with `--build_part=0/16` to `15/16`, and when all are made, with
`--build_part=finish`. A step that Beam repeats continues where it was.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from official_bert import create_pretraining_data
from official_bert.commands import commands
from official_bert.system import locks, messages


def run(parts: int, flags: Mapping[str, Any], options: Sequence[str]) -> None:
    """Builds records with a pipeline of Beam, and waits for its end.

    Args:
        parts: Number of parts; the largest number of machines that work at the same time.
        flags: Settings of `create_pretraining_data.CreateData`, without `build_part`. All workers
            must reach the paths: a shared folder, or addresses such as `gs://bucket/a`.
        options: Beam's own flags.

    Raises:
        ValueError: Beam is not installed, or `parts` is not positive.
    """
    if parts < 1:
        raise ValueError(f"the number of parts must be at least 1; got {parts}.")
    try:
        import apache_beam as beam  # type: ignore[import-not-found]
        from apache_beam.options import pipeline_options  # type: ignore[import-not-found]
    except ImportError:
        raise ValueError(
            "build_with_beam needs the package apache-beam, which is not installed. Install it in "
            'an environment of its own: `pip install ".[bert,beam,jax]"`.'
        ) from None
    with beam.Pipeline(options=pipeline_options.PipelineOptions(list(options))) as pipeline:
        made = (
            pipeline
            | "numbers" >> beam.Create(range(parts))
            | "spread" >> beam.Reshuffle()  # else one worker may take several
            | "parts" >> beam.Map(make_part, parts, dict(flags))
        )
        _ = (
            pipeline
            | "once" >> beam.Create([parts])
            | "finish" >> beam.Map(finish, dict(flags), beam.pvalue.AsList(made))
        )


def make_part(index: int, parts: int, flags: dict[str, Any]) -> int:
    """Makes one part."""
    _create(flags, f"{index}/{parts}")
    return index


def finish(parts: int, flags: dict[str, Any], made: Iterable[int]) -> None:
    """Makes the shards; the pipeline calls it when all parts are made."""
    assert sorted(made) == [*range(parts)]
    _create(flags, "finish")


def _create(flags: dict[str, Any], build_part: str) -> None:
    args = create_pretraining_data.CreateData(**flags, build_part=build_part)
    free = time.monotonic() + locks.STALE_SECONDS + locks.REFRESH_SECONDS
    while True:
        try:
            return create_pretraining_data.main(args)
        except locks.Busy:  # perhaps by a worker that was lost: its claim on a bucket expires
            if time.monotonic() > free:
                raise
            time.sleep(locks.REFRESH_SECONDS)


def main(arguments: Sequence[str]) -> None:
    """Runs the pipeline of a command line, without the name of the command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours, options = arguments[:end], arguments[end + 1 :]
    if not ours or not ours[0].isascii() or not ours[0].isdigit():
        raise ValueError(
            f"the number of parts must come first; got {ours[0] if ours else 'nothing'!r}. For "
            "example: build_with_beam 16 --input_file=… -- --runner=FlinkRunner."
        )
    args = commands.parse(create_pretraining_data.CreateData, ours[1:])
    if args.build_part:
        raise ValueError(
            f"build_part must be left out, because the pipeline sets it; got {args.build_part!r}."
        )
    run(int(ours[0]), {name: getattr(args, name) for name in args.given}, options)


if __name__ == "__main__":
    from official_bert import build_with_beam  # Beam's workers import its functions by this name

    sys.exit(messages.exit_code("build_with_beam", lambda: build_with_beam.main(sys.argv[1:])))
