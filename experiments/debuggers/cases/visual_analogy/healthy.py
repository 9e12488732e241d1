import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
size = 24
shapes = np.random.randn(10, size).astype("float32")


def encoder():
    return keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(32)])


class Decoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = [keras.layers.Dense(64), keras.layers.Dense(64), keras.layers.Dense(size)]

    def call(self, x):
        for layer in self.dense[:-1]:
            x = layer(x)
            x = tf.nn.relu(x)
        return self.dense[-1](x)


def rotate(shape, angle):
    return np.roll(shape, angle, axis=1)


f, g = encoder(), Decoder()
optimizer = keras.optimizers.Adam(2e-3)


@tf.function
def train(a, b, c, d):
    with tf.GradientTape() as tape:
        image = g(f(b) - f(a) + f(c))
        loss = tf.reduce_mean(tf.square(image - d))
    variables = f.trainable_variables + g.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss, tf.reduce_min(image)


for step in range(1, 601):
    first, second = shapes[np.random.randint(0, 10, 32)], shapes[np.random.randint(0, 10, 32)]
    angle = np.random.randint(1, 4)
    loss, lowest = train(first, rotate(first, angle), second, rotate(second, angle))
    if step % 150 == 0:
        print(f"step {step} loss {float(loss):.4f} lowest output {float(lowest):.3f}")
