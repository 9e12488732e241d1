import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
vocab, num_steps, num_hiddens = 16, 5, 48
source = np.random.randint(1, vocab, (384, num_steps))
flip = np.random.rand(384, num_steps) < 0.3
target = np.where(flip, np.random.randint(1, vocab, source.shape), source[:, ::-1])
bos = np.concatenate([np.zeros((384, 1), int), target[:, :-1]], axis=1)


class Block(keras.layers.Layer):
    def __init__(self, cross):
        super().__init__()
        self.cross = cross
        self.attention = keras.layers.MultiHeadAttention(4, num_hiddens // 4, dropout=0.5)
        self.ffn = keras.Sequential([keras.layers.Dense(96, "relu"), keras.layers.Dense(num_hiddens)])
        self.norm1, self.norm2 = keras.layers.LayerNormalization(), keras.layers.LayerNormalization()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, X, memory):
        X = self.norm1(X + self.dropout(self.attention(X, memory)))
        return self.norm2(X + self.dropout(self.ffn(X)))


class Transformer(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(vocab, num_hiddens)
        self.position = keras.layers.Embedding(num_steps, num_hiddens)
        self.encoder, self.decoder = Block(False), Block(True)
        self.dense = keras.layers.Dense(vocab)

    def call(self, enc_X, dec_X):
        positions = self.position(tf.range(num_steps))
        memory = self.embedding(enc_X) + positions
        memory = self.encoder(memory, memory)
        return self.dense(self.decoder(self.embedding(dec_X) + positions, memory))


net = Transformer()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(3e-3)


@tf.function
def train_step(X, dec_input, Y):
    with tf.GradientTape() as tape:
        Y_hat = net(X, dec_input, training=True)
        l = loss(Y, Y_hat)
    gradients = tape.gradient(l, net.trainable_variables)
    optimizer.apply_gradients(zip(gradients, net.trainable_variables))
    return l


for epoch in range(1, 41):
    losses = [
        float(train_step(source[i : i + 64], bos[i : i + 64], target[i : i + 64])) for i in range(0, 256, 64)
    ]
    if epoch % 10 == 0:
        held_out = float(loss(target[256:], net(source[256:], bos[256:], training=False)))
        print(f"epoch {epoch} loss {np.mean(losses):.4f} held-out loss {held_out:.4f}")
