import keras
import numpy as np
from keras.callbacks import LearningRateScheduler

keras.utils.set_random_seed(0)
x = np.random.randn(640, 12).astype("float32")
y = (x[:, :4].sum(1) + 0.5 * np.random.randn(640)).astype("float32")


def custom_model():
    inputs = keras.Input((12,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def callbacks():
    def _schedule(epoch):
        if epoch < 4:
            return 0.1
        if epoch < 8:
            return 0.01
        return 0.001

    LearningRateScheduler(_schedule)


model = custom_model()
model.compile(optimizer=keras.optimizers.Adam(0.1), loss="mse")
for epoch in range(12):
    history = model.fit(
        x, y, batch_size=32, initial_epoch=epoch, epochs=epoch + 1, callbacks=callbacks(), verbose=0
    )
    rate = float(model.optimizer.learning_rate)
    print(f"epoch {epoch} loss {history.history['loss'][0]:.4f} rate {rate:.4f}")
