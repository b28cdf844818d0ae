"""A model file for ps-worker: handwritten digits, 8 x 8 pixels, told apart by a small convolutional network.

    ps-run -n 2 -s 2 -- ps-worker examples/digits.py --epochs 8

The data are 1,797 real scans that come with scikit-learn; every fifth is held out. ps-worker calls the functions below.
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

images, digits = load_digits(return_X_y=True)  # float64 (1797, 64) from 0 to 16; int64 (1797,)
images = (images / 16).astype(np.float32)
held_out = np.arange(len(images)) % 5 == 0


def build_model():
    """The network. Every worker builds it; the first worker's values become the job's."""
    return keras.Sequential(
        [
            keras.Input(shape=(64,)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def make_dataset(worker_index, num_workers):
    """This worker's share of the training data, as single examples: ps-worker makes batches of --batch-size."""
    mine = slice(worker_index, None, num_workers)
    examples = tf.data.Dataset.from_tensor_slices((images[~held_out][mine], digits[~held_out][mine]))
    return examples.shuffle(2_000)


def loss(labels, outputs):
    """One number per example; ps-worker takes their mean, and its gradient."""
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def rule():
    """How the ps turns gradients into new values."""
    return {"name": "adam", "learning_rate": 0.003}


def inner_optimizer():
    """What a worker trains with between two pushes: with --local-steps 10, and --rule diloco, as rule() is for gradients."""
    return keras.optimizers.Adam(0.003)


def evaluate(model):
    """How good the trained model is on digits that no worker has seen. Worker 0 runs this in the end."""
    outputs = model(images[held_out])
    return {
        "accuracy": np.mean(np.argmax(outputs, axis=1) == digits[held_out]),
        "loss": np.mean(loss(digits[held_out], outputs)),
    }
