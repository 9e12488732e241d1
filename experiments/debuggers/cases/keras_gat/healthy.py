import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)
N, F, classes = 240, 16, 4
group = np.random.randint(0, classes, N)
A = (np.random.rand(N, N) < np.where(group[:, None] == group, 0.2, 0.01)).astype("float32")
A = np.maximum(np.maximum(A, A.T), np.eye(N, dtype="float32"))
X = (np.eye(classes)[group] @ np.random.randn(classes, F) + 3 * np.random.randn(N, F)).astype("float32")
Y = np.eye(classes, dtype="float32")[group]


class GraphAttention(layers.Layer):
    def __init__(self, units, activation=None):
        super().__init__()
        self.kernel = layers.Dense(units, use_bias=False)
        self.attn_self, self.attn_neighs = layers.Dense(1), layers.Dense(1)
        self.activation = keras.activations.get(activation)

    def call(self, inputs):
        nodes, adjacency = inputs
        features = self.kernel(nodes)
        scores = self.attn_self(features) + ops.transpose(self.attn_neighs(features))
        scores = ops.leaky_relu(scores, 0.2) - 1e9 * (1.0 - adjacency)
        return self.activation(ops.matmul(ops.softmax(scores), features))


X_in, A_in = keras.Input((F,)), keras.Input((N,))
hidden = GraphAttention(16, "elu")([X_in, A_in])
model = keras.Model([X_in, A_in], layers.Softmax()(GraphAttention(classes)([hidden, A_in])))
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="categorical_crossentropy", metrics=["accuracy"])
train_mask = (np.random.rand(N) < 0.5).astype("float32")
for epoch in range(1, 5):
    history = model.fit(
        [X, A], Y, sample_weight=train_mask, epochs=25, batch_size=N, shuffle=False, verbose=0
    )
    predicted = np.array(model([X, A])).argmax(1)
    held_out = (predicted == group)[train_mask == 0].mean()
    loss = history.history["loss"][-1] / train_mask.mean()
    print(f"epoch {25 * epoch} loss {loss:.4f} accuracy {held_out:.3f}")
