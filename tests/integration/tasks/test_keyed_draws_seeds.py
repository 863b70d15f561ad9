"""TensorFlow's seed is set without what `tf.random.set_seed` takes with it."""

import tensorflow as tf
from tensorflow_text import SentencepieceTokenizer

from official_trainer.tasks import keyed_draws, random_streams
from tests.support.garden import data


def test_tokenizers_outlive_it(tmp_path):
    """N1: those of SentencePiece belong to a kernel; the translation task of Model Garden holds one from its start."""
    data.translation(tmp_path / "train.tfrecord", 2, 0)
    tokenizer = SentencepieceTokenizer((tmp_path / "sentencepiece.model").read_bytes())
    before = tokenizer.tokenize("the cat").numpy().tolist()
    random_streams.enable(3)
    assert tokenizer.tokenize("the cat").numpy().tolist() == before


def test_draws_are_those_after_tensorflows_own():
    """N1: eager operations start again, with the numbers that `tf.random.set_seed` gives."""
    drawn = []
    for set_seed in (tf.random.set_seed, keyed_draws.set_seed, keyed_draws.set_seed):
        set_seed(5)
        drawn.append([tf.random.uniform([2]).numpy().tolist(), tf.random.normal([2], seed=1).numpy().tolist()])
    assert drawn[0] == drawn[1] == drawn[2]
