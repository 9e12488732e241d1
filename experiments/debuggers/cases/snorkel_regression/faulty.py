import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
features = np.random.randn(128, 40).astype("float32")
marginals = (features[:, :2].sum(1) + 0.3 * np.random.randn(128) > 0).astype("float32")


class TFNoiseAwareModel:
    def __init__(self, d, lr=0.05, **penalties):
        self.w = tf.Variable(tf.random.normal((d, 1), stddev=0.1))
        self.b = tf.Variable(tf.zeros((1,)))
        self.optimizer, self.penalties = keras.optimizers.Adam(lr), penalties

    def _build_loss(self, tape, X, Y):
        logits = tf.squeeze(X @ self.w + self.b, 1)
        self.loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=Y, logits=logits))
        self._build_training_ops(tape)

    def _build_training_ops(self, tape):
        with tape.stop_recording():
            gradients = tape.gradient(self.loss, [self.w, self.b])
            self.optimizer.apply_gradients(zip(gradients, [self.w, self.b]))

    def train(self, X, Y, n_epochs=100, batch_size=32):
        for epoch in range(1, n_epochs + 1):
            for i in range(0, len(X), batch_size):
                with tf.GradientTape(persistent=True) as tape:
                    self._build_loss(tape, X[i : i + batch_size], Y[i : i + batch_size], **self.penalties)
            if epoch % 25 == 0:
                size = float(tf.reduce_sum(tf.abs(self.w)))
                print(f"epoch {epoch} loss {float(self.loss):.4f} sum of the weights {size:.3f}")


class LogisticRegression(TFNoiseAwareModel):
    def _build_loss(self, tape, X, Y, l1_penalty=0.0):
        super()._build_loss(tape, X, Y)
        if l1_penalty > 0:
            self.loss += l1_penalty * tf.reduce_sum(tf.abs(self.w))


LogisticRegression(40, l1_penalty=0.02).train(features, marginals)
