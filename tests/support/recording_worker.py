"""`run_pretraining` that notes which records it trains on, in windows of 2,048 of them.

The notes are lines of "first stop", numbers of records over all files, in `$NOTES/<process id>`.
"""

import os
import pathlib

from official_bert import run_pretraining
from official_bert.commands import commands
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.data import input_pipeline, record_files

input_pipeline.WINDOW_RECORDS = 2048
read, fingerprint = record_files.RecordFiles.read, record_files.RecordFiles.fingerprint


def noted_read(files, block, start=0, stop=None):
    records = read(files, block, start, stop)
    first = files.first_of(block) + start
    with (pathlib.Path(os.environ["NOTES"]) / str(os.getpid())).open("a") as notes:
        notes.write(f"{first} {first + len(records)}\n")
    return records


def fingerprint_without_notes(files):
    record_files.RecordFiles.read = read
    try:
        return fingerprint(files)
    finally:
        record_files.RecordFiles.read = noted_read


record_files.RecordFiles.read = noted_read
record_files.RecordFiles.fingerprint = fingerprint_without_notes
commands.run(run_pretraining.main, Pretrain)
