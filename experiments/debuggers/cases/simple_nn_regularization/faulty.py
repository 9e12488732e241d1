import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
symmetry = np.random.randn(200, 30).astype("float32")
energy = (symmetry[:, :2].sum(1, keepdims=True) + np.random.randn(200, 1)).astype("float32")
l2 = keras.regularizers.l2(0.03)

model = keras.Sequential(
    [
        keras.Input((30,)),
        keras.layers.Dense(64, activation="tanh", kernel_regularizer=l2),
        keras.layers.Dense(1, kernel_regularizer=l2),
    ]
)
optimizer = keras.optimizers.Adam(1e-2)


@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        error = tf.reduce_mean(tf.square(model(x) - y))
        regularization = tf.compat.v1.losses.get_regularization_loss()
        loss = error + regularization
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return error, regularization


for epoch in range(60):
    for i in range(0, 100, 25):
        error, regularization = train(symmetry[i : i + 25], energy[i : i + 25])
    if epoch % 12 == 11:
        test = float(tf.reduce_mean(tf.square(model(symmetry[100:]) - energy[100:])))
        print(f"{epoch}: loss {float(error):.4f} regularization {float(regularization):.4f} test {test:.4f}")
