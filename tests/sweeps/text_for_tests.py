"""A small text to train on, made from a seed: words of a made-up language in sentences."""

import random
from pathlib import Path


def write_files(folder: Path, *, files: int = 40, seed: int = 0, words: int = 400) -> Path:
    """Write `files` text files with `words` words each, and return the folder."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(200)]
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        text = [" ".join(rng.choices(lexicon, k=rng.randint(4, 12))) for _ in range(words // 8)]
        (folder / f"part{number:03d}.txt").write_text(".\n".join(text))
    return folder
