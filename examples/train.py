"""A training script of your own: the loop that ps-worker runs for you, written out.

    python examples/train.py                           one worker and a ps inside this process, to try it out
    ps-run -n 2 -s 2 -- python examples/train.py       two workers and two ps, as processes of this machine

On machines of your own, start ps-server on each ps and this script on each worker, TF_CONFIG set on both:

    TF_CONFIG='{"cluster": {"ps": ["a:2222"], "worker": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 0}}'
"""

import os

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import client
import ps

BATCH, STEPS = 32, 200


def train(server):
    images, digits = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    held_out = np.arange(len(images)) % 5 == 0
    mine = slice(server.worker, None, server.num_workers)  # every worker trains on a share of its own
    dataset = tf.data.Dataset.from_tensor_slices((images[~held_out][mine], digits[~held_out][mine]))
    dataset = dataset.shuffle(2_000).repeat().batch(BATCH).take(STEPS)

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Every process must call a variable the same.
    variables = {variable.path: variable for variable in model.trainable_variables}

    @tf.function
    def loss_and_gradients(inputs, labels):
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(inputs, training=True))
        return loss, tape.gradient(loss, list(variables.values()))

    # The first worker's values become the model's; with the pull all begin from them.
    server.init({name: variable.numpy() for name, variable in variables.items()}, rule="adam:learning_rate=0.003")
    values = server.pull()
    for step, (inputs, labels) in enumerate(dataset):
        for name, variable in variables.items():
            variable.assign(values[name])
        loss, gradients = loss_and_gradients(inputs, labels)
        values, result = server.push_pull(dict(zip(variables, gradients)))
        if step % 50 == 0:
            print(
                f"worker {server.worker}, step {step}: loss {loss:.3f}, {result.outcome}, staleness {result.staleness}"
            )

    for name, variable in variables.items():
        variable.assign(values[name])
    right = np.argmax(model(images[held_out]), axis=1) == digits[held_out]
    print(f"worker {server.worker}: accuracy {np.mean(right):.3f} at step {values.step}")


if "TF_CONFIG" in os.environ:
    with client.connect() as server:
        train(server)
else:
    with ps.LocalCluster(servers=2) as local, client.connect(local.cluster, worker=0) as server:
        train(server)
