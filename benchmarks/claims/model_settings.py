"""The BERT of the studies, which is that of `make demo`; read without importing TensorFlow."""

MODEL = {
    "vocab_size": 2048,
    "documents": None,  # of the text; None: all
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "initializer_range": 0.06,
    "masked_lm_prob": 0.25,  # in training; of the held-out text 15 %
}
DIVERGED = 20.0  # nats
LOST = f"the training loss was not finite or above {DIVERGED:g} nats"
EVAL_BATCH = 256
EVAL_BATCHES = 6  # of each set: those that are held out suffice for more


def described(settings: dict) -> str:
    """Model, data and what a seed decides, as a paragraph of a page.

    Args:
        settings: Those of a study; what is not in them is as in `MODEL`.
    """
    about = MODEL | settings
    return (
        f"The model is that of `make demo`: {about['num_hidden_layers']} layers of width "
        f"{about['hidden_size']}, {about['vocab_size']:,} word pieces, no dropout, no next "
        "sentence. It reads the documentation that comes with Python, with "
        f"{100 * about['masked_lm_prob']:g} % of the tokens masked, and is evaluated on held-out "
        f"documents: on 15 % of the tokens of {EVAL_BATCH * EVAL_BATCHES:,} sequences. A seed "
        "decides initial values, batches and masks, those of the evaluation too, alike for all "
        "that is compared: differences are taken seed by seed, with the 95 % interval of their "
        "mean by Student's t."
    )
