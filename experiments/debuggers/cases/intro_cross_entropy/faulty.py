import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf.random.set_seed(0)
digits = load_digits()
train_features = digits.data.astype("float32")
train_labels = np.eye(10, dtype="float32")[digits.target]

features_count = 64
labels_count = 10
weights = tf.Variable(tf.random.truncated_normal((features_count, labels_count)))
biases = tf.Variable(tf.zeros(labels_count))
learning_rate = 0.02


@tf.function
def train(features, labels):
    with tf.GradientTape() as tape:
        logits = tf.matmul(features, weights) + biases
        prediction = tf.nn.softmax(logits)
        cross_entropy = -tf.reduce_sum(labels * tf.math.log(prediction), axis=1)
        loss = tf.reduce_mean(cross_entropy)
    grads = tape.gradient(loss, [weights, biases])
    weights.assign_sub(learning_rate * grads[0])
    biases.assign_sub(learning_rate * grads[1])
    return loss


for epoch in range(10):
    for i in range(0, 1792, 128):
        loss = train(train_features[i : i + 128], train_labels[i : i + 128])
    answers = np.argmax(train_features @ weights.numpy() + biases.numpy(), axis=1)
    accuracy = np.mean(answers == digits.target)
    print(f"Epoch {epoch + 1} loss {float(loss):.4f} accuracy {accuracy:.3f}")
