"""A program that reads files with workers, says their process numbers, and waits to be killed: see test_killed_loader.py."""

import multiprocessing
import sys
import time
from pathlib import Path

from dynavit.data.config import DataConfig
from dynavit.data.loader import make_loader
from dynavit.data.open import open_data

if __name__ == "__main__":
    config = DataConfig(workers=2, image_size=8, val_fraction=0)
    loader = make_loader(open_data("folder", Path(sys.argv[1]), config), "train", train=True, batch_size=2, config=config)
    next(iter(loader.epoch()))
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    time.sleep(600)
