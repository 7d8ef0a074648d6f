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
