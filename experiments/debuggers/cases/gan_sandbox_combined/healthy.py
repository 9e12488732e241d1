import keras
import numpy as np
from keras import Model, layers

keras.utils.set_random_seed(0)
rand_dim, batch_size = 4, 64


def get_image_batch():
    return np.random.normal([2.0, -1.0], 0.3, (batch_size, 2)).astype("float32")


def generator_network():
    inputs = keras.Input((rand_dim,))
    return Model(inputs, layers.Dense(2)(layers.Dense(32, activation="relu")(inputs)))


def discriminator_network():
    inputs = keras.Input((2,))
    return Model(inputs, layers.Dense(1, activation="sigmoid")(layers.Dense(32, activation="relu")(inputs)))


generator = generator_network()
discriminator = discriminator_network()
discriminator.compile(optimizer=keras.optimizers.Adam(5e-3, beta_1=0.5), loss="binary_crossentropy")
discriminator.train_on_batch(get_image_batch(), np.ones((batch_size, 1)))
discriminator.trainable = False
combined_input = keras.Input((rand_dim,))
combined_model = Model(combined_input, discriminator(generator(combined_input)))
combined_model.compile(optimizer=keras.optimizers.Adam(5e-3, beta_1=0.5), loss="binary_crossentropy")
y_real, y_generated = np.ones((batch_size, 1)), np.zeros((batch_size, 1))

for i in range(400):
    g_z = np.random.normal(size=(batch_size, rand_dim)).astype("float32")
    g_loss = combined_model.train_on_batch(g_z, y_real)
    d_loss = discriminator.train_on_batch(get_image_batch(), y_real)
    d_loss += discriminator.train_on_batch(np.array(generator(g_z)), y_generated)
    if i % 80 == 79:
        center = np.array(generator(g_z)).mean(0)
        print(f"Step: {i} g {g_loss:.4f} d {d_loss:.4f} images at {center[0]:.2f} {center[1]:.2f}")
