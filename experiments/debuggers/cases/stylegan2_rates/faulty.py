import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
reals = (np.random.rand(2048, 1) * 6.28 + np.linspace(0, 3, 8)).astype("float32")
reals = np.sin(reals) + 0.1 * np.random.randn(2048, 8).astype("float32")


class TrainingSchedule:
    def __init__(self, cur_nimg, G_lrate=0.0002, D_lrate=0.004):
        ramp = min(cur_nimg / 1024, 1.0)
        self.G_lrate = G_lrate * ramp
        self.D_lrate = D_lrate * ramp


G = keras.Sequential([keras.Input((4,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(8)])
D = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
G_opt = keras.optimizers.Adam(1e-3, beta_1=0.0, beta_2=0.99)
D_opt = keras.optimizers.Adam(1e-3, beta_1=0.0, beta_2=0.99)


@tf.function
def train(images):
    latents = tf.random.normal((64, 4))
    with tf.GradientTape(persistent=True) as tape:
        fakes = G(latents)
        G_loss = tf.reduce_mean(tf.nn.softplus(-D(fakes)))
        D_loss = tf.reduce_mean(tf.nn.softplus(D(fakes)) + tf.nn.softplus(-D(images)))
    G_opt.apply_gradients(zip(tape.gradient(G_loss, G.trainable_variables), G.trainable_variables))
    D_opt.apply_gradients(zip(tape.gradient(D_loss, D.trainable_variables), D.trainable_variables))
    return G_loss, D_loss


cur_nimg = 0
for tick in range(8):
    for i in range(0, 2048, 64):
        cur_nimg += 64
        sched = TrainingSchedule(cur_nimg)
        lrate_in = sched.G_lrate
        G_opt.learning_rate = lrate_in
        D_opt.learning_rate = lrate_in
        G_loss, D_loss = train(reals[i : i + 64])
    rate = float(D_opt.learning_rate)
    print(
        f"tick {tick} G {float(G_loss):.4f} D {float(D_loss):.4f} rate of D {rate:.5f} of {sched.D_lrate:.5f}"
    )
