import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
labels = np.random.randint(0, 3, 768)
centers = np.random.randn(3, 8, 8, 1)
images = (120 + 40 * (centers[labels] + 1.5 * np.random.randn(768, 8, 8, 1))).astype("float32")


def covid_net():
    inputs = keras.Input((8, 8, 1))
    x = inputs
    for filters in (8, 16):
        x = keras.layers.Conv2D(filters, 3, padding="same")(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(3)(x))


model = covid_net()
optimizer = keras.optimizers.Adam(1e-3)
loss_op = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_op(batch, targets, learning_phase=False):
    with tf.GradientTape() as tape:
        loss = loss_op(targets, model(batch, training=learning_phase))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for epoch in range(1, 9):
    losses = []
    for batch in np.random.permutation(768).reshape(-1, 32):
        losses.append(float(train_op(images[batch], labels[batch])))
    if epoch % 2 == 0:
        moving = float(np.abs(np.array(model.layers[2].moving_mean)).max())
        print(f"epoch {epoch} loss {np.mean(losses):.4f} moving mean up to {moving:.3f}")
