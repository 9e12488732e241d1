import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.sort(np.random.uniform(-3, 3, (40, 1)), 0).astype("float32")
y = (np.sin(2 * x) + 0.1 * np.random.randn(40, 1)).astype("float32")


class RandomFourierFeatures(keras.layers.Layer):
    def __init__(self, output_dim, lengthscale=0.7):
        super().__init__()
        self.output_dim, self.lengthscale = output_dim, lengthscale

    def build(self, input_shape):
        shape = (input_shape[-1], self.output_dim)
        self.W = self.add_weight(
            shape=shape, initializer=keras.initializers.RandomNormal(0, 1), trainable=False
        )
        self.b = self.add_weight(
            shape=shape[1:], initializer=keras.initializers.RandomUniform(0, 6.283), trainable=False
        )

    def call(self, inputs):
        features = keras.ops.cos(inputs @ self.W / self.lengthscale + self.b)
        return features * (2.0 / self.output_dim) ** 0.5


features = RandomFourierFeatures(200)
model = keras.Sequential([keras.Input((1,)), features, keras.layers.Dense(1, use_bias=False)])
model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
drawn = features.W.numpy().copy()
grid = np.linspace(-3, 3, 300, dtype="float32")[:, None]
for epoch in range(1, 7):
    history = model.fit(x, y, epochs=30, batch_size=40, verbose=0)
    moved = np.abs(features.W.numpy() - drawn).max()
    error = float(np.mean((np.array(model(grid)) - np.sin(2 * grid)) ** 2))
    if epoch % 2 == 0:
        loss = history.history["loss"][-1]
        print(f"epoch {30 * epoch} loss {loss:.4f} error {error:.4f} frequencies moved by {moved:.4f}")
