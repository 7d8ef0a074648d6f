"""A vocabulary as Hugging Face's files have it: `vocab.txt` and two files of settings."""

import json
import shutil

from tokenizers import processors

from official_bert import tokenization


def write(folder, source):
    """Writes `vocab.txt`, `tokenizer.json` and `tokenizer_config.json`."""
    shutil.copyfile(source.vocab_file, folder / "vocab.txt")
    tokenizer = tokenization.load(str(source.vocab_file), source.do_lower_case)
    ids = {token: tokenizer.token_to_id(token) for token in tokenization.SPECIAL_TOKENS}
    tokenizer.add_special_tokens(list(tokenization.SPECIAL_TOKENS))
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": source.do_lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": source.config.max_position_embeddings,
        **{f"{token[1:-1].lower()}_token": token for token in tokenization.SPECIAL_TOKENS},
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
