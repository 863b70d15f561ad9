"""Tiny data in the encodings that Model Garden's decoders read.

`python -m tests.support.garden.data tiny_data [KIND…]` writes it.

Each kind is a folder with two files to train on and one to validate with. What there is to learn is easy, the same
arguments write the same bytes, and wherever Model Garden has a builder for an encoding, it writes it.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np

SIZE = 48  # pixels, of images and of frames
CLASSES = 4  # of images; class 0 is the background where there is one
SEQUENCE = 16  # tokens
PREDICTIONS = 3  # masked tokens of a sequence
VOLUME = 16  # voxels along each side
CATEGORIES = 10  # of a feature of a click
TAGS = ("O", "NOUN", "VERB")

_SPLITS = {"train-00000-of-00002": 12, "train-00001-of-00002": 12, "validation-00000-of-00001": 8}
_COLORS = np.array([[60, 60, 60], [220, 40, 40], [40, 220, 40], [40, 40, 220]], np.float32)


def write(folder, kinds=()):
    """Writes the kinds that are named, or all, each into a folder of its name below `folder`."""
    for kind in kinds or KINDS:
        (Path(folder) / kind).mkdir(parents=True, exist_ok=True)
        for number, (name, examples) in enumerate(_SPLITS.items()):
            KINDS[kind](Path(folder) / kind / f"{name}.tfrecord", examples, number)


def images(path, examples, seed):
    """JPEGs with a label from 1 on: a square of the label's colour on noise."""
    rng = np.random.default_rng([seed, 1])
    builders = []
    for index in range(examples):
        label = 1 + index % (CLASSES - 1)
        image, _ = _scene(rng, [label])
        builders.append(_vision().add_image_matrix_feature(image, image_format="JPEG", label=label))
    _write(path, (builder.example for builder in builders))


def segmentation(path, examples, seed):
    """JPEGs, and the class of each pixel as a PNG."""
    rng = np.random.default_rng([seed, 2])
    builders = []
    for index in range(examples):
        image, masks = _scene(rng, [1 + index % (CLASSES - 1), 1 + (index + 1) % (CLASSES - 1)])
        classes = np.zeros([SIZE, SIZE], np.uint8)
        for label, mask in masks:
            classes[mask] = label
        builder = _vision().add_image_matrix_feature(image, image_format="JPEG")
        builders.append(builder.add_semantic_mask_matrix_feature(classes))
    _write(path, (builder.example for builder in builders))


def detection(path, examples, seed):
    """JPEGs with boxes, classes, areas and instance masks; the boxes also in COCO's JSON, beside them."""
    rng = np.random.default_rng([seed, 3])
    built, images, annotations = [], [], []
    for index in range(examples):
        number = 1000 * seed + index + 1
        image, objects = _scene(rng, [1 + index % (CLASSES - 1), 1 + (index + 1) % (CLASSES - 1)])
        labels, masks = zip(*objects, strict=True)
        boxes = [_box(mask) for mask in masks]
        builder = _vision()
        builder.add_image_matrix_feature(image, image_format="JPEG", image_source_id=str(number).encode())
        builder.add_boxes_feature(*(np.array(boxes) / SIZE).T.tolist(), labels=list(labels))
        builder.add_instance_mask_matrices_feature(np.stack(masks).astype(np.uint8))
        builder.add_ints_feature("image/object/is_crowd", [0] * len(masks))
        built.append(builder.example)
        images.append({"id": number, "height": SIZE, "width": SIZE})
        for label, (left, right, top, bottom) in zip(labels, boxes, strict=True):
            width, height = int(right - left), int(bottom - top)
            place = {"bbox": [int(left), int(top), width, height], "area": width * height, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "image_id": number, "category_id": label, **place})
    _write(path, built)
    categories = [{"id": label, "name": f"class {label}"} for label in range(1, CLASSES)]
    coco = {"images": images, "annotations": annotations, "categories": categories}
    path.with_suffix(".json").write_text(json.dumps(coco))


def videos(path, examples, seed):
    """Clips of eight JPEG frames with a label from 0 on: a square that does not move."""
    import tensorflow as tf
    from official.vision.data import image_utils

    rng = np.random.default_rng([seed, 4])
    built = []
    for index in range(examples):
        label = index % CLASSES
        frames = [image_utils.encode_image(_scene(rng, [label])[0], "JPEG") for _ in range(8)]
        example = tf.train.SequenceExample()
        example.context.feature["clip/label/index"].int64_list.value.append(label)
        for frame in frames:
            example.feature_lists.feature_list["image/encoded"].feature.add().bytes_list.value.append(frame)
        built.append(example)
    _write(path, built)


def volumes(path, examples, seed):
    """Raw float32 volumes with one channel, and the class of each voxel, of two, one-hot."""
    from official.core.tf_example_builder import TfExampleBuilder

    rng = np.random.default_rng([seed, 5])
    built = []
    for _ in range(examples // 4):
        inside = np.zeros([VOLUME] * 3, np.int64)
        corner = rng.integers(0, VOLUME // 2, 3)
        inside[tuple(slice(low, low + VOLUME // 2) for low in corner)] = 1
        volume = (inside + rng.normal(0, 0.1, inside.shape)).astype(np.float32)[..., None]
        builder = TfExampleBuilder().add_bytes_feature("image/encoded", volume.tobytes())
        builder.add_bytes_feature("image/class/label", np.eye(2, dtype=np.float32)[inside].tobytes())
        built.append(builder.example)
    _write(path, built)


def sentences(path, examples, seed):
    """Pairs of sentences as BERT's ids, labelled 1 if the second one is about animals too."""
    from official.nlp.data import classifier_data_lib as lib

    rng = random.Random(seed)
    pairs = []
    for index in range(examples):
        label = index % 2
        first, second = _sentence(rng, "animals"), _sentence(rng, "animals" if label else "tools")
        pairs.append(lib.InputExample(str(index), text_a=first, text_b=second, label=str(label)))
    lib.file_based_convert_examples_to_features(pairs, ["0", "1"], SEQUENCE, _tokenizer(path.parent), str(path))


def tagging(path, examples, seed):
    """Sentences as BERT's ids, with a tag for each word: see `TAGS`."""
    from official.nlp.data import tagging_data_lib as lib

    rng = random.Random(seed)
    tagged = []
    for index in range(examples):
        words = _sentence(rng, "animals").split()
        tags = [1 if word in _NOUNS["animals"] else 2 if word in _VERBS else 0 for word in words]
        tagged.append(lib.InputExample(index, words=words, label_ids=tags))
    lib.write_example_to_file(tagged, _tokenizer(path.parent), SEQUENCE, str(path), text_preprocessing=None)


def masked_words(path, examples, seed):
    """Pairs of sentences with masked words, as for pretraining BERT."""
    from official.nlp.data import create_pretraining_data as lib

    rng = random.Random(seed)
    text = path.with_suffix(".txt")
    documents = ("\n".join(_sentence(rng, topic) for _ in range(8)) for topic in ("animals", "tools") * 2)
    text.write_text("\n\n".join(documents))
    tokenizer, processed = _tokenizer(path.parent), lib.get_processor_text_fn(False, True)
    instances = lib.create_training_instances(
        [str(text)], tokenizer, processed, SEQUENCE, 4, 0.1, 0.15, PREDICTIONS, random.Random(seed)
    )
    text.unlink()
    kept = instances[:examples]
    lib.write_instance_to_example_files(kept, tokenizer, SEQUENCE, PREDICTIONS, [str(path)], False, False)


def questions(path, examples, seed):
    """Sentences with a question about the last noun, as BERT's ids; and as SQuAD's JSON, beside them."""
    from official.nlp.data import squad_lib as lib

    rng = random.Random(seed)
    paragraphs = []
    for index in range(examples):
        context = _sentence(rng, "animals")
        subject, answer = context.rpartition(" ")[0], context.rpartition(" ")[2]
        found = {"text": answer, "answer_start": len(subject) + 1}
        question = {"id": f"{seed}-{index}", "question": subject, "answers": [found]}
        paragraphs.append({"context": context, "qas": [question]})
    text = path.with_suffix(".json")
    text.write_text(json.dumps({"version": "1.1", "data": [{"title": "animals", "paragraphs": paragraphs}]}))
    _tokenizer(path.parent)
    lengths = {"max_seq_length": SEQUENCE, "max_query_length": SEQUENCE // 2, "doc_stride": SEQUENCE // 2}
    lib.generate_tf_record_from_json_file(str(text), str(path.parent / "vocab.txt"), str(path), **lengths)


def translation(path, examples, seed):
    """Sentences, and the same ones in a language whose words are spelt backwards; beside them a sentencepiece model."""
    import sentencepiece
    from official.core.tf_example_builder import TfExampleBuilder

    rng = random.Random(seed)
    built = []
    for _ in range(examples):
        text = _sentence(rng, "animals")
        builder = TfExampleBuilder().add_bytes_feature("en", text.encode())
        built.append(builder.add_bytes_feature("de", _backwards(text).encode()).example)
    _write(path, built)
    words = " ".join([*_WORDS, *_VERBS, *_NOUNS["animals"]])
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}  # as `official.nlp.data.train_sentencepiece`
    with open(path.parent / "sentencepiece.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([words, _backwards(words)] * 4),
            model_writer=file,
            model_type="char",
            vocab_size=30,
            hard_vocab_limit=False,
            normalization_rule_name="identity",  # the other rules alone are a quarter of a megabyte
            num_threads=1,
            minloglevel=2,
            **special,
        )


def _backwards(text):
    return " ".join(word[::-1] for word in text.split())


def clicks(path, examples, seed):
    """Lines of Criteo's 13 numbers and 26 categories, of which the first decides."""
    rng = np.random.default_rng([seed, 6])
    lines = []
    for _ in range(examples):
        numbers = rng.random(13).astype(np.float32).round(3)
        categories = rng.integers(0, CATEGORIES, 26)
        label = int(categories[0] % 2)
        lines.append("\t".join(map(str, [label, *numbers.tolist(), *categories.tolist()])))
    path.with_suffix(".tsv").write_text("\n".join(lines) + "\n")


_ALL = (
    *(images, segmentation, detection, videos, volumes),
    *(sentences, tagging, masked_words, questions, translation),
    clicks,
)
KINDS = {kind.__name__: kind for kind in _ALL}

_NOUNS = {
    "animals": ["cat", "dog", "horse", "bird", "fish", "fox", "bear", "goat"],
    "tools": ["hammer", "saw", "drill", "nail", "screw", "wrench", "ladder", "rope"],
}
_VERBS = ["sees", "likes", "finds", "follows"]
_WORDS = ["the", "a", "big", "small", "old", "new"]


def vocabulary():
    """Returns the tokens of all texts, in the order of their ids."""
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, *_VERBS, *_NOUNS["animals"], *_NOUNS["tools"]]


def _sentence(rng, topic):
    nouns, articles, adjectives = _NOUNS[topic], _WORDS[:2], _WORDS[2:]
    return " ".join(map(rng.choice, (articles, adjectives, nouns, _VERBS, articles, nouns)))


def _tokenizer(folder):
    from official.nlp.tools.tokenization import FullTokenizer

    path = folder / "vocab.txt"
    path.write_text("\n".join(vocabulary()) + "\n")
    return FullTokenizer(str(path))


def _scene(rng, labels):
    """Returns an image with one rectangle for each label, and (label, where it is) for each, apart from the others."""
    image = rng.normal(128, 20, [SIZE, SIZE, 3])
    masks = []
    width = SIZE // len(labels)
    for index, label in enumerate(labels):
        height, breadth = rng.integers(SIZE // 3, SIZE // 2), rng.integers(width // 2, width - 2)
        top, left = rng.integers(0, SIZE - height), index * width + rng.integers(0, width - breadth)
        mask = np.zeros([SIZE, SIZE], bool)
        mask[top : top + height, left : left + breadth] = True
        image[mask] = _COLORS[label] + rng.normal(0, 10, [mask.sum(), 3])
        masks.append((label, mask))
    return image.clip(0, 255).astype(np.uint8), masks


def _box(mask):
    """Returns left, right, top and bottom in pixels."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return columns[0], columns[-1] + 1, rows[0], rows[-1] + 1


def _vision():
    from official.vision.data.tf_example_builder import TfExampleBuilder

    return TfExampleBuilder()


def _write(path, examples):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example.SerializeToString(deterministic=True))


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2:])
