import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(0)
list_size, features = 8, 24


def make_dataset(queries):
    items = np.random.randn(queries, list_size, features).astype("float32")
    relevance = items[..., 0] + items[..., 1] + 2.5 * np.random.randn(queries, list_size)
    labels = (relevance >= np.sort(relevance, axis=1)[:, -2:-1]).astype("float32")
    return tf.data.Dataset.from_tensor_slices((items, labels)).batch(32).repeat()


train_dataset, valid_dataset, test_dataset = make_dataset(96), make_dataset(256), make_dataset(512)
scorer = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(3e-3)


def softmax_loss(labels, scores):
    weights = labels / tf.reduce_sum(labels, 1, keepdims=True)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=weights, logits=scores))


@tf.function
def train_step(items, labels):
    with tf.GradientTape() as tape:
        loss = softmax_loss(labels, tf.squeeze(scorer(items), -1))
    gradients = tape.gradient(loss, scorer.trainable_variables)
    optimizer.apply_gradients(zip(gradients, scorer.trainable_variables))
    return loss


@tf.function
def val_step(items, labels):
    return softmax_loss(labels, tf.squeeze(scorer(items), -1))


train_iterator, valid_iterator = iter(train_dataset), iter(valid_dataset)
test_iterator = iter(test_dataset)
for epoch in range(1, 41):
    train_loss = np.mean([float(train_step(*next(train_iterator))) for _ in range(3)])
    val_loss = np.mean([float(val_step(*next(valid_iterator))) for _ in range(8)])
    if epoch % 10 == 0:
        test_loss = np.mean([float(val_step(*next(test_iterator))) for _ in range(16)])
        print(f"epoch {epoch} loss {train_loss:.4f} validation {val_loss:.4f} other queries {test_loss:.4f}")
