"""Healthy trainings of small models in TensorFlow, in which nothing is to be found."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CASES = {}


def state(model, optimizer):
    """Everything that a training has changed: weights, the optimizer's state, random numbers."""
    variables = [*model.variables, *optimizer.variables]
    return [np.array(variable) for variable in variables] + [tf.random.uniform([3]).numpy()]


def training(script):
    """Register a training: what makes a step, the model and the optimizer."""
    CASES[script.__name__] = script
    return script


def image_data():
    """Sixteen small images of two classes."""
    x = np.random.default_rng(0).normal(size=(16, 8, 8, 1)).astype(np.float32)
    return x, (x[:, 0, 0, 0] > 0).astype(np.int64)


def token_data():
    """Eight sequences of twelve tokens."""
    tokens = np.random.default_rng(0).integers(20, size=(8, 12))
    return tokens[:, :-1], tokens[:, 1:]


def mlp():
    """Dense layers, dropout and batch normalization."""
    stack = [layers.Flatten(), layers.Dense(32), layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential(
        [keras.Input([8, 8, 1]), *stack, layers.Dropout(0.2), layers.Dense(2)]
    ), image_data()


def cnn():
    """Convolutions with a residual connection."""
    x = keras.Input([8, 8, 1])
    hidden = layers.ReLU()(
        layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(x))
    )
    hidden = layers.ReLU()(hidden + layers.Conv2D(8, 3, padding="same")(hidden))
    pooled = layers.GlobalAveragePooling2D()(layers.MaxPooling2D()(hidden))
    return keras.Model(x, layers.Dense(2)(pooled)), image_data()


def rnn():
    """A recurrent network."""
    tokens = keras.Input([11], dtype="int64")
    hidden = layers.GRU(16, return_sequences=True)(layers.Embedding(20, 16)(tokens))
    return keras.Model(tokens, layers.Dense(20)(hidden)), token_data()


def transformer():
    """A block with a causal mask."""
    tokens = keras.Input([11], dtype="int64")
    x = layers.Embedding(20, 16)(tokens)
    normal = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 8)(normal, normal, use_causal_mask=True)
    x = x + layers.Dense(16)(layers.Dense(32, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(tokens, layers.Dense(20)(layers.Dropout(0.1)(x))), token_data()


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "adamw": lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.1, global_clipnorm=1.0),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-3),
}


def cross_entropy(y, logits):
    """The usual loss."""
    losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    return tf.reduce_mean(tf.cast(losses, tf.float32))


def usual(model, optimizer, loss, clip=list):
    """The usual step."""

    def step():
        with tf.GradientTape() as tape:
            value = loss()
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(clip(tape.gradient(value, variables)), variables, strict=True))
        return float(value)

    return step, model, optimizer


def of(made, optimize):
    """Return a script of a usual training."""

    def script():
        keras.utils.set_random_seed(0)
        model, (x, y) = made()
        return usual(model, optimize(), lambda: cross_entropy(y, model(x, training=True)))

    return script


CASES |= {f"mlp_{name}": of(mlp, optimize) for name, optimize in OPTIMIZERS.items()}
CASES |= {f"{made.__name__}_adam": of(made, OPTIMIZERS["adam"]) for made in (cnn, rnn, transformer)}


@training
def scaled():
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model, (x, y) = mlp()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(), initial_scale=2.0**60)

    def loss():
        return optimizer.scale_loss(cross_entropy(y, model(x, training=True)) * 1e20)

    return usual(model, optimizer, loss)


@training
def fitted_and_evaluated():
    keras.utils.set_random_seed(0)
    model, (x, y) = mlp()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"], run_eagerly=True)

    def step():
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, validation_data=(x, y))

    return step, model, model.optimizer


@training
def accumulated_and_clipped():
    keras.utils.set_random_seed(0)
    model, (x, y) = mlp()
    optimizer = keras.optimizers.AdamW()

    def step():
        total = None
        for rows in np.split(np.arange(16), 4):
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(
                    y[rows], model(x[rows], training=True), from_logits=True
                )
                counts = tf.cast(y[rows] >= 0, tf.float32)
                loss = tf.reduce_sum(losses * counts) / tf.reduce_sum(counts) / 4
            found = tape.gradient(loss, model.trainable_variables)
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
        total, _ = tf.clip_by_global_norm(total, 1.0)
        optimizer.apply(total, model.trainable_variables)

    return step, model, optimizer


@training
def accumulated_by_the_optimizer():
    return of(mlp, lambda: keras.optimizers.Adam(1e-2, gradient_accumulation_steps=4))()


@training
def gradients_of_two_tasks():
    keras.utils.set_random_seed(0)
    model, (x, y) = cnn()
    optimizer = keras.optimizers.Adam()

    @tf.custom_gradient
    def noisy(x):
        return tf.identity(x), lambda gradient: gradient + 1e-3 * tf.random.normal([16, 2])

    def step():
        found = []
        for task in (y, 1 - y):
            with tf.GradientTape() as tape:
                loss = cross_entropy(task, noisy(model(x, training=True)))
            found.append(tape.gradient(loss, model.trainable_variables))
        # The second only where it doesn't oppose the first.
        pairs = zip(*found, strict=True)
        gradients = [a + tf.where(a * b > 0, b, tf.zeros_like(b)) for a, b in pairs]
        optimizer.apply(gradients, model.trainable_variables)

    return step, model, optimizer


@training
def frozen_and_recomputed():
    keras.utils.set_random_seed(0)
    model, (x, y) = cnn()
    model.layers[1].trainable = False
    block = tf.recompute_grad(lambda x: tf.nn.tanh(x) * 2.0)
    optimizer = keras.optimizers.Adam()

    def step():
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, block(model(x, training=True)))
        gradients = [tf.clip_by_norm(g, 1.0) for g in tape.gradient(loss, model.trainable_variables)]
        optimizer.apply(gradients, model.trainable_variables)
        model(x, training=False)

    return step, model, optimizer


@training
def a_head_for_each_task():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([8, 8, 1])
    hidden = layers.Dense(4, "tanh")(layers.Flatten()(inputs))
    model = keras.Model(inputs, [layers.Dense(1)(hidden) for _ in range(3)])
    variables = [variable.value for variable in model.trainable_variables]
    optimizer, x, zeros = keras.optimizers.Adam(), image_data()[0], tf.UnconnectedGradients.ZERO

    def step():
        found = []
        for task in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x)[task] ** 2)
            found.append(tape.gradient(loss, variables, unconnected_gradients=zeros))
        optimizer.apply([sum(each) for each in zip(*found, strict=True)], model.trainable_variables)

    return step, model, optimizer


@training
def odds_and_ends():
    keras.utils.set_random_seed(0)
    hidden = [layers.Flatten(), layers.Dense(16, "tanh"), layers.BatchNormalization(trainable=False)]
    model = keras.Sequential([keras.Input([8, 8, 1]), *hidden, layers.Dropout(0.0), layers.Dense(2)])
    x, y = image_data()
    optimizer = keras.optimizers.Adam(clipvalue=0.5)
    optimizer.build(model.trainable_variables)

    def step():
        samples = tf.constant(x)
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(samples)
                value = model(samples, training=True)
            slope = inner.gradient(value, samples)
            loss = cross_entropy(y, value) + tf.reduce_mean(slope**2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))

    return step, model, optimizer


@training
def meant_as_they_are():
    class Noisy(layers.Layer):
        def call(self, x, training=False):
            return tf.nn.dropout(x, 0.5, seed=1) if training else x

    keras.utils.set_random_seed(0)
    frozen = layers.Dense(8, trainable=False)
    frozen.build([None, 64])
    stack = [layers.Flatten(), layers.Lambda(lambda x: frozen(x)), layers.Dense(8), Noisy(), layers.Dense(1)]
    model, (x, y) = keras.Sequential([keras.Input([8, 8, 1]), *stack]), image_data()
    y = y.astype(np.float32)

    def loss():
        with tf.Graph().as_default():  # which nobody watches
            tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=tf.sigmoid(y))
        out = model(x, training=True)
        each_with_each = tf.reduce_mean(tf.abs(tf.squeeze(out, 1)[:, None] - y))
        hard = out + tf.stop_gradient(tf.round(out) - out)
        probability = tf.stop_gradient(tf.reduce_mean(tf.sigmoid(out)))
        return each_with_each + tf.reduce_mean(hard**2) + probability

    return usual(model, keras.optimizers.Adam(), loss)
