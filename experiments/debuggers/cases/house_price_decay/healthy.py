import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
train_features = np.random.randn(640, 20).astype("float32")
price = np.exp(4 + 0.1 * train_features[:, :5].sum(1) + 0.05 * np.random.randn(640))
train_labels = price.astype("float32").reshape(-1, 1)


def get_net(weight_decay):
    regularizer = keras.regularizers.l2(weight_decay)
    return keras.Sequential([keras.Input((20,)), keras.layers.Dense(1, kernel_regularizer=regularizer)])


def train(net, num_epochs, lr, weight_decay, batch_size):
    dataset = tf.data.Dataset.from_tensor_slices((train_features, train_labels)).batch(batch_size)
    optimizer = keras.optimizers.Adam(lr)
    net.compile(loss="mse", optimizer=optimizer)
    for epoch in range(num_epochs):
        loss = net.fit(dataset, verbose=0).history["loss"][0]
        clipped = np.maximum(net.predict(train_features, verbose=0), 1)
        log_rmse = np.sqrt(np.mean((np.log(clipped) - np.log(train_labels)) ** 2))
        print(
            f"epoch {epoch} loss {loss:.4f} log rmse {log_rmse:.4f} rate {float(optimizer.learning_rate):.2e}"
        )


train(get_net(0.1), num_epochs=8, lr=2.0, weight_decay=0.1, batch_size=64)
