import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(0)
num_actions, clipping, entropy_weight = 4, 0.2, 0.2


def proximal_policy_optimization_loss(advantage, old_prediction):
    def loss(y_true, y_pred):
        prob = ops.sum(y_true * y_pred, axis=-1)
        old_prob = ops.sum(y_true * old_prediction, axis=-1)
        r = prob / (old_prob + 1e-10)
        clipped = ops.clip(r, 1 - clipping, 1 + clipping)
        surrogate = ops.minimum(r * advantage, clipped * advantage)
        entropy_loss = -prob * ops.log(prob + 1e-10)
        return -ops.mean(surrogate + entropy_weight * entropy_loss)

    return loss


class Actor(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x["state"], training=True)
            loss = proximal_policy_optimization_loss(x["advantage"], x["old"])(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


state = keras.Input((3,))
hidden = layers.Dense(32, activation="relu")(state)
actor = Actor(state, layers.Dense(num_actions, activation="softmax")(hidden))
actor.compile(optimizer=keras.optimizers.Adam(6e-3))
for episode in range(1, 101):
    states = np.random.randn(64, 3).astype("float32")
    old = np.array(actor(states))
    chances = old.astype(float) / old.astype(float).sum(1, keepdims=True)
    actions = np.array([np.random.choice(num_actions, p=p) for p in chances])
    advantage = 0.3 * np.random.randn(64).astype("float32")
    x = {"state": states, "advantage": advantage, "old": old}
    for _ in range(4):
        loss = actor.train_on_batch(x, np.eye(num_actions, dtype="float32")[actions])
    if episode % 25 == 0:
        entropy = -(old * np.log(old + 1e-10)).sum(1).mean()
        print(f"episode {episode} loss {float(loss):.4f} entropy {entropy:.4f} of {np.log(num_actions):.4f}")
