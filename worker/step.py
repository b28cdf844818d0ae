"""What is the loss on a batch, and its gradients? One tf.function around one tf.GradientTape.

It must not know the ps. TensorReplica is the Replica that loop.py trains, TensorLearner the Learner of local_steps.py.
Next: variables.py (names and values).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf

from client import IndexedSlices
from protos.codec import Array
from protos.errors import InvalidInput
from worker.variables import Variables, to_numpy


class TensorReplica:
    """A model and its loss. batch_spec: the (inputs, labels) of a batch as tf.TypeSpecs, so that one trace serves all.

    loss(labels, outputs): a scalar, or one number per example, whose mean is taken. The model's own losses
    (regularisation) are added. Embedding gradients stay sparse.
    """

    def __init__(self, model: Any, loss: Callable[[Any, Any], Any], batch_spec: Any) -> None:
        self.variables = Variables(model)
        self._model, self._loss = model, loss
        self._training = {"training": True} if _takes_training(model) else {}
        self._names = list(self.variables.trainable)
        self._compute = tf.function(self._loss_and_gradients, input_signature=batch_spec)
        self._compute_scaled = tf.function(
            self._scaled_gradients, input_signature=[*batch_spec, tf.TensorSpec((), tf.float32)]
        )

    @property
    def non_trainable(self) -> Collection[str]:
        return self.variables.state.keys()

    def values(self, names: Collection[str] | None = None) -> dict[str, Array]:
        return self.variables.values(names)

    def assign(self, values: Mapping[str, Array]) -> None:
        self.variables.assign(values)

    def examples(self, batch: Any) -> int:
        first = tf.nest.flatten(batch)[0]
        return int(first.shape[0]) if first.shape.rank else 1

    def gradients(self, batch: Any, scale: float = 1.0) -> tuple[float, dict[str, Any]]:
        """The loss, and the gradients of `scale` times it by name: arrays in the shapes of the variables, or IndexedSlices."""
        loss, gradients = self._compute(*batch) if scale == 1 else self._compute_scaled(*batch, scale)
        if all(gradient is None for gradient in gradients):
            raise _independent()
        return float(loss), {
            name: _to_client(gradient) for name, gradient in zip(self._names, gradients) if gradient is not None
        }

    def _scaled_gradients(self, inputs: Any, labels: Any, scale: Any) -> tuple[Any, list[Any]]:
        def scaled(loss: Any) -> Any:
            loss = tf.cast(loss, tf.float32) if loss.dtype.size == 2 else loss  # the product is not to overflow
            return loss * tf.cast(scale, loss.dtype)

        return self._loss_and_gradients(inputs, labels, scaled)

    def _loss_and_gradients(
        self, inputs: Any, labels: Any, scaled: Callable[[Any], Any] = lambda loss: loss
    ) -> tuple[Any, list[Any]]:
        """The loss, and the gradients of what `scaled` makes of it."""
        with tf.GradientTape() as tape:
            outputs = self._model(inputs, **self._training)
            loss = tf.reduce_mean(tf.convert_to_tensor(self._loss(labels, outputs)))
            extra = getattr(self._model, "losses", None)
            if extra:
                loss += tf.cast(tf.add_n([tf.reduce_sum(value) for value in extra]), loss.dtype)
            target = scaled(loss)
        return loss, tape.gradient(target, list(self.variables.trainable.values()))


class TensorLearner(TensorReplica):
    """A replica that trains by itself. optimizer: a Keras optimizer, of this replica alone; plain descent if None."""

    def __init__(self, model: Any, loss: Callable[[Any, Any], Any], batch_spec: Any, optimizer: Any = None) -> None:
        import keras

        super().__init__(model, loss, batch_spec)
        optimizer = keras.optimizers.SGD() if optimizer is None else optimizer
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise InvalidInput(
                field="inner_optimizer",
                got=type(optimizer).__name__,
                expected="a Keras optimizer such as keras.optimizers.AdamW(1e-3)",
            )
        # Keras's own variables where there are any: some optimizers ask for more than a tf.Variable knows.
        self._targets = list(getattr(model, "trainable_weights", None) or self.variables.trainable.values())
        self._optimizer = optimizer
        optimizer.build(self._targets)
        self._train = tf.function(self._loss_and_update, input_signature=batch_spec)

    def train(self, batch: Any) -> float:
        """One step of the optimizer; the loss before it."""
        return float(self._train(*batch))

    def _loss_and_update(self, inputs: Any, labels: Any) -> Any:
        loss, gradients = self._loss_and_gradients(inputs, labels, self._optimizer.scale_loss)
        pairs = [(gradient, target) for gradient, target in zip(gradients, self._targets) if gradient is not None]
        if not pairs:
            raise _independent()
        self._optimizer.apply(*zip(*pairs))
        return loss


def _independent() -> InvalidInput:
    return InvalidInput(
        field="loss",
        got="a loss that depends on no variable of the model",
        expected="loss(labels, outputs) computed from outputs with TensorFlow operations",
    )


def _to_client(gradient: Any) -> Array | IndexedSlices:
    if isinstance(gradient, tf.IndexedSlices):
        return IndexedSlices(to_numpy(gradient.values), to_numpy(gradient.indices))
    return to_numpy(gradient)


def _takes_training(model: Any) -> bool:
    """Whether training=True may be said to the model. A Keras layer takes it, and drops it if its call does not."""
    import keras

    if isinstance(model, keras.layers.Layer):
        return True
    parameters = inspect.signature(model).parameters.values()
    return any(p.name == "training" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
