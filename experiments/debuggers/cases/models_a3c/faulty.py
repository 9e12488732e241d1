import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
num_actions, mean_rewards = 5, np.array([0.3, 0.1, 0.5, 0.9, 0.2], "float32")


class ActorCriticModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense1 = keras.layers.Dense(32, activation="relu")
        self.policy_logits = keras.layers.Dense(num_actions)
        self.dense2 = keras.layers.Dense(32, activation="relu")
        self.values = keras.layers.Dense(1)

    def call(self, inputs):
        return self.policy_logits(self.dense1(inputs)), self.values(self.dense2(inputs))


model = ActorCriticModel()
optimizer = keras.optimizers.Adam(3e-3)


@tf.function
def compute_update(states, actions, rewards):
    with tf.GradientTape() as tape:
        logits, values = model(states)
        advantage = rewards[:, None] - values
        value_loss = advantage**2
        policy = tf.nn.softmax(logits)
        entropy = tf.reduce_sum(policy * tf.math.log(policy + 1e-20), axis=1)
        policy_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)
        policy_loss *= tf.stop_gradient(tf.squeeze(advantage, 1))
        policy_loss -= 0.3 * entropy
        total_loss = tf.reduce_mean(0.5 * tf.squeeze(value_loss, 1) + policy_loss)
    gradients = tape.gradient(total_loss, model.trainable_weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_weights))
    return total_loss, tf.reduce_max(policy, axis=1)


for episode in range(1, 801):
    states = np.random.randn(16, 3).astype("float32")
    probabilities = tf.nn.softmax(model(states)[0]).numpy().astype(float)
    probabilities /= probabilities.sum(1, keepdims=True)
    actions = np.array([np.random.choice(num_actions, p=p) for p in probabilities])
    rewards = mean_rewards[actions] + 0.3 * np.random.randn(16).astype("float32")
    loss, largest = compute_update(states, actions, rewards)
    if episode % 200 == 0:
        reward = mean_rewards[actions].mean()
        certain = float(tf.reduce_mean(largest))
        print(
            f"episode {episode} loss {float(loss):.4f} reward {reward:.3f} largest probability {certain:.3f}"
        )
