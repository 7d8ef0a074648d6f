"""Tasks: what the training loop must not know of what it trains.

A task is a frozen dataclass with

    sums                    names of what is summed over the batches; `tokens` is one of them
    weights                 names of a batch's arrays whose global totals the loss is divided by
    progress                {metric: format} of the progress line, beside the loss
    describe()              the task as JSON values, for `run.json`
    check(stage)            raises a ValueError for a stage that the task cannot train
    make_model(config, seed, dtype)     a built Keras model with its `config`, called as
                            model(batch, training=…, dropout_seed=…)
    trains(path)            whether the variable of this path is of use to the task
    batches(files, stage, batch_size, config, *, seed, shard, held_out=False)
                            batches by step: `batches[step]`, a dictionary of arrays; with
                            `element_spec`, `num_batches`, `fingerprint()`
    batch_sums(outputs, batch)          {name: float32 scalar}, of `sums`
    loss(sums, weights)     the rows' share of the global batch's loss
    metrics(sums)           {name: float} from a vector of `sums`, `loss` among them
    label_counts(batch, config)         a vector that is added up over held-out batches
    held_out_metrics(sums, counts)      `metrics` beside what guessing would get; the best weights
                            are those of the lowest `loss`
    guessing_loss(config)   the loss of guessing all labels with equal probability
    held_out_line(metrics)  one line of text

`pretraining.Pretraining`, `classification.Classification` and `squad.QuestionAnswering` are the
three of this package.
"""
