"""Public issues, each replayed as a small training in TensorFlow with the mistake that its thread is about.

A script returns what `diagnose` takes: a step, the model and the optimizer.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras.optimizers import SGD, Adam, AdamW, LossScaleOptimizer, RMSprop

from cases import nothing, registry

CASES, CURES, issue, fault = registry()  # a fault is one that no thread is about


def data():
    """A batch of two classes."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def stacked(*more):
    """A model of some layers."""
    return keras.Sequential([keras.Input([8]), *more])


def network(*between):
    """Two layers."""
    return stacked(layers.Dense(16, "relu"), *between, layers.Dense(2, name="last"))


def cross_entropy(y, logits):
    """The usual loss."""
    losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    return tf.reduce_mean(losses)


def usual(model, optimizer=None, loss=None, *, asked=None, clip=list, after=nothing):
    """The usual step, by plain descent on a cross-entropy unless told otherwise."""
    optimizer, asked, (x, y) = optimizer or SGD(0.1), asked or model.trainable_variables, data()

    def step():
        with tf.GradientTape() as tape:
            value = loss() if loss else cross_entropy(y, model(x))
        gradients = clip(tape.gradient(value, asked))
        optimizer.apply_gradients(zip(gradients, asked, strict=True))
        after(gradients)

    return step, model, optimizer


@issue("https://github.com/pytorch/ao/pull/1124", "rounded away", "optimizer.apply")
def bfloat16_weights():
    x, y = data()
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")

    def loss():
        return cross_entropy(y, tf.cast(model(tf.cast(x, tf.bfloat16)), tf.float32))

    return usual(model, Adam(1e-5), loss)


@issue("https://github.com/VGraphRNN/VGRNN/issues/4", "clip after the update", "clip_by_global_norm")
def clip_after_step():
    return usual(network(), after=lambda gradients: tf.clip_by_global_norm(gradients, 10.0))


@issue(
    "https://github.com/jcwleo/random-network-distillation-pytorch/issues/17",
    "clip unused",
    "clip_by_global_norm",
)
def clip_without_effect():
    def clip(gradients):
        tf.clip_by_global_norm(gradients, 0.5)
        return gradients

    return usual(network(), clip=clip)


@issue("https://github.com/eriklindernoren/Keras-GAN/issues/253", "coupled samples", "inner.gradient")
def gradient_penalty_with_batch_normalization():
    x, _ = data()
    critic = stacked(
        layers.Dense(16), layers.BatchNormalization(), layers.LeakyReLU(negative_slope=0.2), layers.Dense(1)
    )

    def loss():
        mixed = tf.convert_to_tensor(x) + tf.random.uniform([16, 1]) * (tf.random.normal([16, 8]) - x)
        with tf.GradientTape() as inner:
            inner.watch(mixed)
            value = critic(mixed, training=True)
        slope = inner.gradient(value, mixed)
        size = tf.sqrt(tf.reduce_sum(slope**2, axis=1) + 1e-12)
        return tf.reduce_mean(value) + 10 * tf.reduce_mean((size - 1) ** 2)

    return usual(critic, RMSprop(5e-5), loss)


@issue("https://github.com/tensorflow/tensorflow/issues/12071", "not finite, backward", "tf.norm")
def norm_of_zero():
    x, y = data()
    x[0] = 0
    model = stacked(layers.Dense(2, use_bias=False))
    return usual(
        model, loss=lambda: tf.reduce_mean((tf.norm(model(x), axis=1) - tf.cast(y, tf.float32)) ** 2)
    )


@fault("not finite, backward", "tf.norm")
def norm_of_zero_under_a_scale():
    x, _ = data()
    x[0] = 0
    model, optimizer = stacked(layers.Dense(2, use_bias=False)), LossScaleOptimizer(SGD(0.1))
    return usual(model, optimizer, lambda: optimizer.scale_loss(tf.reduce_mean(tf.norm(model(x), axis=1))))


@issue("https://github.com/huggingface/diffusers/issues/1009", "frozen but moving", "optimizer.apply")
def masked_rows_decay():
    data()
    model = keras.Sequential([keras.Input([], dtype="int64"), layers.Embedding(12, 8), layers.Dense(2)])
    tokens = tf.range(12, dtype=tf.int64)

    def mask(gradients):
        embedding, *rest = gradients
        return [tf.convert_to_tensor(embedding) * tf.one_hot(11, 12)[:, None], *rest]

    optimizer = AdamW(1e-3, weight_decay=1e-2)
    return usual(model, optimizer, lambda: cross_entropy(tokens % 2, model(tokens)), clip=mask)


@issue(
    "https://github.com/yusugomori/deeplearning-keras-tf2-torch/issues/2",
    "training in evaluation mode",
    "model(x)",
)
def training_not_said():
    return usual(network(layers.Dropout(0.5)))


@issue(
    "https://github.com/udacity/deep-learning-v2-pytorch/issues/3",
    "evaluation in training mode",
    "model(x, training=True)",
)
def dropout_while_validating():
    x, y = data()
    model = network(layers.Dropout(0.2))

    def validate(_):
        return tf.reduce_mean(tf.cast(tf.argmax(model(x, training=True), -1) == y, tf.float32)).numpy()

    return usual(model, Adam(), lambda: cross_entropy(y, model(x, training=True)), after=validate)


@issue("https://github.com/spro/practical-pytorch/issues/9", "not in the optimizer", "")
def model_made_twice():
    x, y = data()
    variables, twin, optimizer = network().trainable_variables, network(), SGD(0.005)

    def step():
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, twin(x))
        optimizer.apply(tape.gradient(loss, twin.trainable_variables), variables)

    return step, twin, optimizer


@issue(
    "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/5",
    "not finite, forward",
    "softmax",
)
def attention_with_nothing_to_attend_to():
    data()
    embed, out = layers.Embedding(12, 8), layers.Dense(12)
    model = keras.Sequential([keras.Input([4], dtype="int64"), embed, out])
    tokens = tf.constant([[1, 2, 3, 4], [0, 0, 0, 0]], tf.int64)

    def loss():
        x = embed(tokens)
        scores = tf.matmul(x, x, transpose_b=True)
        scores = tf.where((tokens == 0)[:, None], -np.inf, scores)
        mixed = tf.matmul(tf.nn.softmax(scores), x)
        return cross_entropy(tokens, out(mixed))

    return usual(model, Adam(), loss)


@issue("https://github.com/lucidrains/deep-cross-attention/issues/2", "zero everywhere", "relu")
def zeros_before_relu():
    x, y = data()
    first, last = layers.Dense(16, use_bias=False, kernel_initializer="zeros"), layers.Dense(2)

    def loss():
        hidden = tf.nn.relu(first(x))
        return cross_entropy(y, last(hidden))

    return usual(stacked(first, last), loss=loss)


@issue("https://github.com/keras-team/keras/issues/16663", "cut", "argsort")
def sorted_orders_compared():
    x, y = data()
    model = stacked(layers.Dense(1))

    def loss():
        order = tf.argsort(tf.argsort(model(x)[:, 0]))
        return tf.reduce_sum(tf.cast(tf.abs(order - tf.argsort(tf.argsort(y))), tf.float32))

    return usual(model, loss=loss)


@issue("https://github.com/keras-team/keras/issues/11157", "cut", "argmax")
def argmax_between_layers():
    x, y = data()
    encode = layers.Dense(12, "softmax")
    model = stacked(encode)
    model.decode = layers.Dense(2)

    def loss():
        words = tf.argmax(encode(x), axis=-1)
        return cross_entropy(y, model.decode(tf.cast(words, tf.float32)[:, None]))

    return usual(model, loss=loss)


def in_parts(loss, parts):
    """A step that adds up the gradients of several parts; ``loss(y, logits)``."""
    (x, y), model, optimizer = data(), network(), Adam()

    def step():
        found = []
        for rows in parts:
            with tf.GradientTape() as tape:
                value = loss(y[rows], model(x[rows]))
            found.append(tape.gradient(value, model.trainable_variables))
        optimizer.apply([sum(each) for each in zip(*found, strict=True)], model.trainable_variables)

    return step, model, optimizer


@issue("https://github.com/huggingface/transformers/issues/24725", "parts of unequal weight", "tape.gradient")
def accumulated_means_of_unequal_length():
    return in_parts(lambda y, logits: cross_entropy(y, logits) / 2, [slice(0, 2), slice(2, 16)])


@issue("https://github.com/karpathy/nanoGPT/issues/206", "parts not averaged", "tape.gradient")
def accumulated_means_not_divided():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return in_parts(loss, [slice(row, row + 4) for row in range(0, 16, 4)])


@fault("parts of unequal weight", "tape.gradient")
def parts_of_the_optimizers_own():
    (x, y), model, optimizer = data(), network(), Adam(gradient_accumulation_steps=2)

    def step():
        for rows in (slice(0, 3), slice(3, 16)):
            with tf.GradientTape() as tape:
                loss = cross_entropy(y[rows], model(x[rows]))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step, model, optimizer


@issue("https://github.com/facebookresearch/nwm/issues/16", "never zeroed", "tape.gradient")
def never_zeroed():
    model = network()
    sums = [tf.Variable(tf.zeros_like(v)) for v in model.trainable_variables]

    def added(gradients):
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign_add(gradient)
        return [tf.identity(total) for total in sums]

    return usual(model, Adam(0.01), clip=added)


@issue("https://github.com/milesial/Pytorch-UNet/issues/468", "clip before unscaling", "clip_by_global_norm")
def clip_before_unscaling():
    x, y = data()
    model, optimizer = network(), LossScaleOptimizer(RMSprop(1e-3), initial_scale=1024.0)
    return usual(
        model,
        optimizer,
        lambda: optimizer.scale_loss(cross_entropy(y, model(x))),
        clip=lambda gradients: tf.clip_by_global_norm(gradients, 1.0)[0],
    )


@issue("https://github.com/huggingface/trl/issues/3452", "loss of 0", "tape.gradient")
def advantages_that_cancel():
    x, _ = data()
    model = network()
    rewards = tf.constant([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]])

    def loss():
        advantages = rewards - tf.reduce_mean(rewards, -1, keepdims=True)
        logits = model(x)
        answers = tf.random.categorical(tf.stop_gradient(logits), 1)[:, 0]
        log_probs = tf.gather(tf.nn.log_softmax(logits), answers, batch_dims=1)
        ratio = tf.exp(tf.reshape(log_probs - tf.stop_gradient(log_probs), [2, 4, 2]))
        return -tf.reduce_mean(tf.reduce_mean(ratio * advantages[..., None], -1))

    return usual(model, Adam(1e-3), loss)


def cancelled_by(rewards):
    """Return a training whose advantages are rewards less the mean of each row."""
    x, _ = data()
    model, given = network(), tf.constant(rewards)

    def loss():
        advantages = tf.reshape(given - tf.reduce_mean(given, -1, keepdims=True), [-1])
        log_pi = tf.nn.log_softmax(model(x[: len(advantages)]))[:, 0]
        return -tf.reduce_mean(advantages * log_pi)

    return usual(model, loss=loss)


@issue("https://github.com/modelscope/ms-swift/issues/4547", "zero factor", "reduce_mean(given")
def rewards_that_are_equal():
    return cancelled_by([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])


@fault("zero factor", "reduce_mean(given")
def groups_of_one():
    return cancelled_by([[1.0], [0.0], [1.0]])


@fault("zero factor", "losses * nothing")
def weights_of_zeros():
    x, labels = data()
    model, nothing = network(), tf.zeros(len(labels))

    def loss():
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(x))
        return tf.reduce_sum(losses * nothing)

    return usual(model, loss=loss)


@fault("zero factor", "labels == -1")
def a_mask_of_zeros():
    x, labels = data()
    model = network()

    def loss():
        counted = tf.cast(labels == -1, tf.float32)
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(x)) * counted)

    return usual(model, loss=loss)


@fault("learning rate of 0", "optimizer.apply")
def learning_rate_of_zero():
    return usual(network(), Adam(0.0))


@fault("not finite, data", "model(x)")
def spoilt_batch():
    x, y = data()
    x[3, 2] = np.nan
    x, model = tf.constant(x), stacked(layers.Dense(2))
    return usual(model, loss=lambda: cross_entropy(y, model(x)))


@fault("vanishing", "")
def many_sigmoids():
    return usual(stacked(*(layers.Dense(8, "sigmoid") for _ in range(12)), layers.Dense(2)), Adam())


@fault("exploding", "hidden @ kernel")
def many_moments():
    x, _ = data()
    layer = layers.Dense(8, use_bias=False, kernel_initializer=keras.initializers.Orthogonal(3.0))
    model = stacked(layer)
    kernel = layer.kernel

    def loss():
        hidden = tf.constant(1e-3 * x)
        for _ in range(20):
            hidden = hidden @ kernel
        return 1e-6 * tf.reduce_mean(hidden**2)

    return usual(model, SGD(1e-9), loss)


@fault("never updated", "tape.gradient")
def never_updated():
    x, y = data()
    model = network()

    def step():
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        tape.gradient(loss, model.trainable_variables)

    return step, model, SGD(0.1)


@fault("no backward pass", "")
def no_backward_pass():
    x, y = data()
    model = network()
    return lambda: cross_entropy(y, model(x)), model, SGD(0.1)


@fault("frozen but moving", "optimizer.apply")
def frozen_after_some_steps():
    x, y = data()
    model = network()
    variables = model.trainable_variables
    optimizer = SGD(0.1, momentum=0.9)

    def update():
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        asked = model.trainable_variables
        found = dict(zip([v.path for v in asked], tape.gradient(loss, asked), strict=True))
        gradients = [found.get(v.path, tf.zeros_like(v)) for v in variables]
        optimizer.apply(gradients, variables)

    update()
    model.layers[0].trainable = False
    return update, model, optimizer


@fault("not in the graph", "")
def a_layer_that_nobody_calls():
    x, y = data()
    used, spare = layers.Dense(2), layers.Dense(2)
    model = keras.Model(inputs := keras.Input([8]), [used(inputs), spare(inputs)])
    return usual(model, loss=lambda: cross_entropy(y, used(x)))


@fault("twice in the optimizer", "")
def variable_twice():
    model = network()
    return usual(model, asked=[*model.trainable_variables, model.layers[0].kernel])


@fault("broadcast", "model(x) - y", cure=("targets[:, None]", "- y)", "- y[:, None])"))
def a_column_less_a_row():
    x, _ = data()
    y, model = x[:, 0] - x[:, 1], stacked(layers.Dense(16, "relu"), layers.Dense(1))
    return usual(model, loss=lambda: tf.reduce_mean((model(x) - y) ** 2))


@fault("logits expected", "from_logits=True", cure=("softmax", "tf.nn.softmax(model(x))", "model(x)"))
def softmax_twice():
    (x, y), model = data(), network()
    return usual(model, loss=lambda: cross_entropy(y, tf.nn.softmax(model(x))))


@fault("logits expected", "with_logits(", cure=("sigmoid", "tf.sigmoid(model(x))", "model(x)"))
def sigmoid_twice():
    (x, y), model = data(), stacked(layers.Dense(1))
    targets = y[:, None].astype("float32")

    def loss():
        return tf.nn.sigmoid_cross_entropy_with_logits(targets, tf.sigmoid(model(x)))

    return usual(model, loss=loss)


@issue(
    "https://github.com/hunglc007/tensorflow-yolov4-tflite/issues/369",
    "penalty left out",
    "tf.reduce_mean(losses)",
    cure=("tf.add_n(model.losses)", "model(x))", "model(x)) + tf.add_n(model.losses)"),
)
def regularizers_without_a_penalty():
    (x, y), l2 = data(), keras.regularizers.L2(0.01)
    model = stacked(layers.Dense(16, "relu", kernel_regularizer=l2), layers.Dense(2, kernel_regularizer=l2))
    return usual(model, loss=lambda: cross_entropy(y, model(x)))


@fault("dead term", "argmax")
def an_accuracy_in_the_loss():
    (x, y), model = data(), network()

    def loss():
        logits = model(x)
        right = tf.cast(tf.argmax(logits, 1) == y, tf.float32)
        return cross_entropy(y, logits) - tf.reduce_mean(right)

    return usual(model, loss=loss)


@issue(
    "https://github.com/keras-team/keras-applications/issues/168",
    "not registered",
    "inner(x)",
    cure=("layer.trainable = False", "Dense(8)\n", "Dense(8, trainable=False)\n"),
)
def layer_in_a_lambda():
    inner = layers.Dense(8)
    inner.build([None, 8])
    return usual(stacked(layers.Dense(8, "relu"), layers.Lambda(lambda x: inner(x)), layers.Dense(2)))


@issue(
    "https://github.com/tensorflow/addons/issues/693",
    "zero everywhere",
    "clip_by_value",
    cure=(
        "the loss that takes logits",
        "loss=clipped",
        "loss=lambda: tf.nn.sigmoid_cross_entropy_with_logits(y, model(x))",
    ),
)
def saturated_and_clipped():
    (x, _), log = data(), tf.math.log
    model, y = stacked(layers.Dense(1)), np.zeros([16, 1], np.float32)
    model.layers[0].bias.assign([20.0])

    def clipped():
        p = tf.clip_by_value(tf.sigmoid(model(x)), 1e-7, 1 - 1e-7)
        return -tf.reduce_mean(y * log(p) + (1 - y) * log(1 - p))

    return usual(model, loss=clipped)


@fault(
    "evaluation in training mode",
    "tf.nn.dropout",
    cure=("if training:", "tf.nn.dropout(x, 0.5)", "tf.nn.dropout(x, 0.5) if training else x"),
)
def functional_dropout_in_an_evaluation():
    class Net(keras.layers.Dense):
        def call(self, x, training=False):
            return super().call(tf.nn.dropout(x, 0.5))

    model = Net(2)
    model.build([16, 8])
    return usual(model, after=lambda _: model(data()[0], training=False))


def in_float16(small):
    """A network that computes in float16, and whose loss is small."""
    x = 1e-2 * data()[0]
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = stacked(layers.Dense(16, "tanh"), layers.Dense(1))
    finally:
        keras.config.set_dtype_policy("float32")

    def loss():
        out = tf.cast(model(x), tf.float32)
        return small * tf.reduce_mean((out - 1e-4 * x[:, :1]) ** 2)

    return usual(model, Adam(1e-3), loss)


@fault("loss of 0", "tape.gradient(")
def advantages_that_cancel_in_a_bias():
    x, _ = data()
    rewards = np.random.default_rng(1).random(16).astype(np.float32)
    model = stacked(layers.Dense(16, "tanh"), layers.Dense(1, bias_initializer="ones"))

    def loss():
        advantages = (rewards - rewards.mean()) / rewards.std()
        out = model(x)[:, 0]
        # Of which the bias gets 1e-8, from rounding.
        return -tf.reduce_mean(tf.exp(out - tf.stop_gradient(out)) * advantages)

    return usual(model, SGD(1e-2), loss)


@fault("no backward pass", "optimizer.apply(")
def model_that_is_frozen():
    x, y = data()
    model, optimizer = network(), SGD(0.1)
    model.trainable = False

    def step():
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step, model, optimizer


@issue(
    "https://github.com/keras-team/keras/issues/19244",
    "underflow",
    "tape.gradient",
    cure=("scale_loss", "in_float16(1e-3)", "in_float16(1e-3 * 2.0**15)"),
)
def float16_without_a_scale():
    return in_float16(1e-3)


@fault("underflow", "tf.cast(model(x)", cure=("scale_loss", "in_float16(1e-6)", "in_float16(1e-6 * 2.0**25)"))
def float16_without_any_gradient():
    return in_float16(1e-6)


def rounding(weights, updates):
    """Add updates to weights in bfloat16, by plain descent."""
    model = layers.Layer(dtype="bfloat16")
    model.weight = model.add_weight(shape=weights.shape, name="weight")

    def loss():
        model.weight.assign(weights)
        return tf.reduce_sum(tf.cast(model.weight, tf.float64) * -updates)

    return usual(model, SGD(1.0), loss)
