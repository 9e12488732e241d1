import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
v_s = np.random.randn(400, 30).astype("float32")
label = (v_s[:, :5].sum(1) + 1.5 * np.random.randn(400) > 0).astype("float32").reshape(-1, 1)


class Encoder(keras.Model):
    def __init__(self, drop_rate):
        super().__init__()
        self.drop_rate = drop_rate
        self.fc1 = keras.layers.Dense(128, activation="tanh")
        self.fc2 = keras.layers.Dense(64, activation="tanh")
        self.fc3 = keras.layers.Dense(1)

    def call(self, inputs, is_training=False):
        h0 = self.fc1(inputs)
        if is_training:
            h = tf.nn.dropout(h0, rate=self.drop_rate)
        h = self.fc2(h0)
        return self.fc3(h)


model = Encoder(0.9)
optimizer = keras.optimizers.Adam(2e-3)
bce = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_step(features, labels):
    with tf.GradientTape() as tape:
        loss = bce(labels, model(features, is_training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(25):
    loss = np.mean([float(train_step(v_s[i : i + 20], label[i : i + 20])) for i in range(0, 200, 20)])
    if epoch % 6 == 0:
        val = float(bce(label[200:], model(v_s[200:])))
        change = float(tf.reduce_mean(tf.abs(model(v_s, is_training=True) - model(v_s, is_training=True))))
        print(f"epoch {epoch} loss {loss:.4f} val loss {val:.4f} change between passes {change:.4f}")
