r"""Fine-tunes BERT to tag words: names, parts of speech, or any labels of your own.

    lamb-bert tag --train_file=train.conll --dev_file=dev.conll \
        --bert_config_file=bert_config.json --vocab_file=vocab.txt \
        --init_checkpoint=bert_model.ckpt --output_dir=names --do_train --do_eval --num_seeds=5

Run again with the same flags, it resumes from the last checkpoint in --output_dir.
"""

import dataclasses
import functools
import os

from official_bert.commands import commands, fine_tuning, fine_tuning_settings
from official_bert.commands.arguments import idle
from official_bert.commands.fine_tuning_settings import FineTuning
from official_bert.system import local_paths, messages
from official_bert.system.settings import documented, setting
from official_bert.tasks import tag_files

LABELS = "labels.json"
_FILE = "CoNLL (a word per line, its tag in the last column) or JSON lines (tokens, tags)"


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tag(FineTuning):
    """The settings of the command."""

    train_file: str | None = setting(f"Tagged sentences to train on: {_FILE}.", None)
    dev_file: str | None = setting("Tagged sentences to evaluate on.", None)
    predict_file: str | None = setting("Sentences to tag, with or without tags.", None)
    max_seq_length: int = setting(
        "Maximum sequence length in tokens; longer sentences are read in overlapping windows.",
        128,
        minimum=3,
    )
    do_eval: bool = setting("Evaluate on --dev_file, with the scores of seqeval.", False)
    do_predict: bool = setting("Tag --predict_file.", False)


_FILES = {
    "train_file": (["do_train"], f"Give {_FILE}."),
    "dev_file": (["do_eval"], f"Give {_FILE}."),
    "predict_file": (["do_predict"], f"Give {_FILE}."),
}
RULES = (
    idle(["dev_file"], lambda args: not args.do_eval, "without --do_eval."),
    idle(["predict_file"], lambda args: not args.do_predict, "without --do_predict."),
    *fine_tuning_settings.RULES,
)


def check(args: Tag) -> Tag:
    """Refuses contradictions, and warns of flags without effect; returns the settings without them.

    Raises:
        ValueError: naming the flag, the reason, and what to do.
    """
    return fine_tuning_settings.check(args, RULES, _FILES)


def main(args: Tag) -> int:
    """Fine-tunes, evaluates and tags; returns the exit code."""
    args = check(args)
    args = fine_tuning.resolve_paths(args, (*_FILES,))
    if args.predict_file:
        folders = [folder for _, folder in args.seeds_and_folders()]
        written = [tag_files.predictions_file(args.predict_file, folder) for folder in folders]
        local_paths.require_apart({"output_dir": written}, {"predict_file": [args.predict_file]})
    return fine_tuning.run(args, "run_tagger", _job)


def _job(args):
    from official_bert.checkpoints import source
    from official_bert.tasks import labels, tagging

    config = fine_tuning.read_config(args)
    fine_tuning.require_head(args, config, source.TAGGER)
    if args.do_train:
        classes = tagging.find_classes(tag_files.read_tagged(args.train_file)[0])
    else:
        classes = _known_classes(args, config)
    vocabulary = {"vocab_file": args.vocab_file, "do_lower_case": args.do_lower_case}
    task = tagging.Tagging(classes=classes, **vocabulary)
    examples, dev, asked = 0, None, None
    if args.do_train:
        examples = len(_read(args, task, config, args.train_file)[1])
    if args.do_eval:
        dev = _read(args, task, config, args.dev_file)
    if args.do_predict:
        asked = _read(args, task, config, args.predict_file, labelled=False)
    return fine_tuning.FineTuningJob(
        task=task,
        config=config,
        use=functools.partial(_use, args, task, dev, asked),
        train_file=args.train_file,
        examples=examples,
        eval_files=(args.dev_file,) if args.do_eval else (),
        keep=lambda folder: labels.save(classes, os.path.join(folder, LABELS)),
        evaluated_on={"dev_file": args.dev_file},
        ranked_by="f1",
    )


def _known_classes(args, config):
    """The tags of the model that is used: of --init_checkpoint, else of the run."""
    from official_bert.checkpoints import sources
    from official_bert.tasks import labels

    if args.init_checkpoint:
        named = sources.open_as_init(config, args.init_checkpoint).labels
        if not named:
            raise ValueError(
                f"--init_checkpoint must name its tags; got {args.init_checkpoint} without "
                f"{LABELS} next to it. Copy that of its training there."
            )
        found = labels.from_json(named)
    else:
        found = labels.load(os.path.join(args.seeds_and_folders()[0][1], LABELS))
    if isinstance(found, labels.Classes):
        return found
    flag = "init_checkpoint" if args.init_checkpoint else "output_dir"
    raise ValueError(
        f"--{flag} must be a model of tags; got {getattr(args, flag)}, which predicts others. Give "
        "the folder of a tagger."
    )


def _read(args, task, config, file, labelled=True):
    """The sentences of a file and their windows; prints what is unusual about them."""
    if labelled:
        sentences, scheme = tag_files.read_tagged(file, task.scheme)
        kind = f", tags in {scheme}" if scheme != "plain" else ", plain tags"
        if scheme not in ("plain", task.scheme):
            kind += f", read as {task.scheme}"
    else:
        sentences, kind = tag_files.read(file, labelled=False), ""
    features, without_piece = task.features(sentences, args.max_seq_length, config)
    words = len(features.rows)
    print(f"{file}: {len(sentences):,} sentences of {words:,} words{kind}")
    if without_piece:
        print(f"{file}: {without_piece:,} words give no word piece and are read as [UNK]")
    if features.cut_sentences:
        print(
            f"{file}: {features.cut_sentences:,} sentences are longer than "
            f"--max_seq_length={args.max_seq_length} and are read in overlapping windows"
        )
    unknown = int((features.tags < 0).sum()) if labelled else 0
    if unknown:
        known = {*task.classes.names}
        names = sorted({tag for tags in sentences.tags for tag in tags} - known)
        messages.warn(
            f"{file}: {unknown:,} words have tags that the model does not know "
            f"({', '.join(names[:5])}{', …' if len(names) > 5 else ''}); they count as missed."
        )
    return sentences, features


def _use(args, task, dev, asked, engine, model, folder):
    """Evaluates and tags; returns the scores."""
    from official_bert.prediction.forward import Forward
    from official_bert.tasks import tagging

    forward, shape = Forward(model, engine), (args.max_seq_length, model.num_outputs)

    def tags_of(sentences, features, batch_size):
        parts = forward.parts(features, batch_size, shape)
        numbers = tagging.predictions(parts, features, sentences.path)
        return task.decode(numbers, sentences)

    metrics = {}
    if args.do_eval:
        metrics = task.scores(dev[0], tags_of(*dev, args.eval_batch_size))
    if args.do_predict:
        found = tags_of(*asked, args.predict_batch_size)
        if engine.is_chief:
            path = tag_files.write_predictions(args.predict_file, folder, found)
            print(f"tagged {len(found):,} sentences: {path}")
    return metrics


if __name__ == "__main__":
    commands.run(main, Tag)
