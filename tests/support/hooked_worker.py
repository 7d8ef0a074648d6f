"""`run_pretraining` whose reading of records is observed, or waits.

    python hooked_worker.py recording FLAGS …

notes which records it trains on, in windows of 2,048 of them: lines of "first stop", numbers of
records over all files, in `$NOTES/<process id>`.

    python hooked_worker.py waiting FLAGS …

gets its records from step 20 on only when the file `$GO` exists: actions of a test before that
happen in the middle of a longer run, however fast the machine is.
"""

import os
import pathlib
import sys
import time

from official_bert import run_pretraining
from official_bert.commands import commands
from official_bert.commands.pretraining_settings import Pretrain
from official_bert.data import input_pipeline, record_files


def record():
    input_pipeline.WINDOW_RECORDS = 2048
    files_class = record_files.RecordFiles
    read, fingerprint = files_class.read, files_class.fingerprint

    def noted_read(files, block, start=0, stop=None):
        records = read(files, block, start, stop)
        first = files.first_of(block) + start
        with (pathlib.Path(os.environ["NOTES"]) / str(os.getpid())).open("a") as notes:
            notes.write(f"{first} {first + len(records)}\n")
        return records

    def fingerprint_without_notes(files):
        files_class.read = read
        try:
            return fingerprint(files)
        finally:
            files_class.read = noted_read

    files_class.read, files_class.fingerprint = noted_read, fingerprint_without_notes


def wait():
    read = input_pipeline.Batches.__getitem__

    def read_when_told(batches, step):
        while step >= 20 and not pathlib.Path(os.environ["GO"]).exists():
            time.sleep(0.02)
        return read(batches, step)

    input_pipeline.Batches.__getitem__ = read_when_told


{"recording": record, "waiting": wait}[sys.argv.pop(1)]()
commands.run(run_pretraining.main, Pretrain)
