import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
x = np.random.randn(800, 25).astype("float32")
y = (x[:, :3].sum(1) + 0.1 * np.random.randn(800)).astype("float32").reshape(-1, 1)

num_features = 25
model = keras.Sequential([keras.Input((num_features,))])
for out_size in (50, 10):
    model.add(keras.layers.Dense(out_size, activation="relu", kernel_regularizer=keras.regularizers.l2(1e-4)))
model.add(keras.layers.Dense(1))
opt = keras.optimizers.Adam(learning_rate=0.005)


@tf.function
def train_step(batch_x, batch_y):
    with tf.GradientTape() as tape:
        y_pred = tf.squeeze(model(batch_x, training=True), axis=1)
        loss = tf.reduce_mean(tf.square(batch_y - y_pred))
        total = loss + tf.add_n(model.losses)
    grads = tape.gradient(total, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss


for epoch in range(15):
    losses = [float(train_step(x[i : i + 100], y[i : i + 100])) for i in range(0, 800, 100)]
    print(f"Epoch {epoch + 1} loss {np.mean(losses):.4f} of targets with variance {y.var():.4f}")
