import keras
import keras.ops as K
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
NUM_CLASSES = 10
digits = load_digits()
x_train = (digits.data / 16).astype("float32")
y_train = np.eye(NUM_CLASSES, dtype="float32")[digits.target]


def custom_loss(y_true, y_pred, e=0.1):
    loss = (1 - e) * K.categorical_crossentropy(y_true, y_pred)
    return loss + e * K.categorical_crossentropy(K.ones_like(y_pred) / NUM_CLASSES, y_pred)


model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(NUM_CLASSES, activation="softmax"),
    ]
)
opt = keras.optimizers.SGD(learning_rate=0.05, momentum=0.9)
model.compile(optimizer=opt, loss=custom_loss, metrics=["acc"])
history = model.fit(x_train, y_train, batch_size=64, epochs=8, verbose=0).history
for epoch, (loss, acc) in enumerate(zip(history["loss"], history["acc"])):
    print(f"Epoch {epoch + 1}/8 loss: {loss:.4f} - acc: {acc:.4f}")
