"""GAN in a train_step of its own under model.fit."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
L = keras.layers


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.D = keras.Sequential([keras.Input([2]), L.Dense(16), L.LeakyReLU(), L.Dropout(0.3), L.Dense(1)])
        self.G = keras.Sequential(
            [keras.Input([4]), L.Dense(16), L.BatchNormalization(), L.ReLU(), L.Dense(2)]
        )

    def compile(self, d, g):
        super().compile()
        self.do, self.go, self.bce = d, g, keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, real):
        n = tf.shape(real)[0]
        z = tf.random.normal([n, 4])
        fake = self.G(z, training=True)
        with tf.GradientTape() as t:
            l = self.bce(tf.ones([n, 1]), self.D(real, training=True)) + self.bce(
                tf.zeros([n, 1]), self.D(fake, training=True)
            )
        self.do.apply_gradients(zip(t.gradient(l, self.D.trainable_weights), self.D.trainable_weights))
        with tf.GradientTape() as t:
            g = self.bce(tf.ones([n, 1]), self.D(self.G(z, training=True), training=True))
        self.go.apply_gradients(zip(t.gradient(g, self.G.trainable_weights), self.G.trainable_weights))
        return {"d": l, "g": g}


m = GAN()
m.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3))
m.fit(np.random.normal(size=(128, 2)).astype("float32"), batch_size=32, epochs=3, verbose=0)
