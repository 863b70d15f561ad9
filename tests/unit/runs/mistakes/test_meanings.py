"""What a known message of TensorFlow means in a task of Model Garden; those of a user's task are in tests/system."""

from official_trainer.runs.mistakes.meanings import meaning_of


def test_positions_of_bigbird_are_no_vocabulary():
    """N28: as printed for 64 positions and examples of 16 tokens; other look-ups keep their meaning."""
    said = (
        "indices[0,0,1,0] = 17 is not in [0, 8)\n\t [[{{node bert_classifier/%s/GatherV2}}]] [Op:__inference_loop_8269]"
    )
    meaning = meaning_of(RuntimeError(said % "transformer_scaffold/big_bird_attention"))
    assert "set max_position_embeddings of its encoder to the length of the examples" in meaning.text
    assert "input_dim of an Embedding" in meaning_of(RuntimeError(said % "word_embeddings")).text
