// What kafkajs negotiates, against brokers or a proxy: its package has no tests of its own that need brokers.
// SERVERS=127.0.0.1:9092 node --test client.test.js
const assert = require("node:assert")
const { randomUUID } = require("node:crypto")
const { before, after, test } = require("node:test")
const { CompressionTypes, Kafka, logLevel } = require("kafkajs")

const kafka = new Kafka({ clientId: "kafkajs", brokers: process.env.SERVERS.split(","), logLevel: logLevel.ERROR })
const admin = kafka.admin()
const patience = { timeout: 120_000 }

before(() => admin.connect())
after(async () => {
  await admin.disconnect()
  setTimeout(process.exit, 5_000).unref() // a test that failed may have left a connection, with which this would never end
})

async function newTopic() {
  const topic = `kafkajs-${randomUUID()}`
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 2 }] })
  return topic
}

/** The values of so many records of a topic, as a group reads them. */
async function read(topic, count, groupId = randomUUID()) {
  const consumer = kafka.consumer({ groupId })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const values = []
  const all = new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error)) // else it goes on
    consumer.run({
      eachMessage: async ({ message }) => {
        values.push(message.value.toString())
        if (values.length === count) resolve()
      },
    })
  })
  await all.finally(() => consumer.disconnect())
  return values.sort()
}

async function write(topic, producer, values, options = {}) {
  await producer.send({ topic, messages: values.map((value) => ({ value })), ...options })
}

for (const [name, config, options] of [
  ["acks all", {}, { acks: -1 }],
  ["acks of the leader", {}, { acks: 1 }],
  ["gzip", {}, { compression: CompressionTypes.GZIP }],
  ["idempotent", { idempotent: true }, {}],
]) {
  test(`what a producer sends arrives: ${name}`, patience, async () => {
    const topic = await newTopic()
    const producer = kafka.producer(config)
    await producer.connect()
    const values = Array.from({ length: 100 }, (_, number) => `${number}`.padStart(500, "0"))
    await write(topic, producer, values, options)
    await producer.disconnect()
    assert.deepStrictEqual(await read(topic, values.length), values)
  })
}

test("requests of more than the quota of a second arrive", patience, async () => {
  const topic = await newTopic()
  const producer = kafka.producer()
  await producer.connect()
  const values = Array.from({ length: 8 }, (_, number) => `${number}`.padStart(500_000, "0"))
  for (const value of values) await write(topic, producer, [value])
  await producer.disconnect()
  assert.deepStrictEqual(await read(topic, values.length), values)
})

test("a transaction that is aborted isn't read", patience, async () => {
  const topic = await newTopic()
  const producer = kafka.producer({ transactionalId: randomUUID(), maxInFlightRequests: 1, idempotent: true })
  await producer.connect()
  const aborted = await producer.transaction()
  await write(topic, aborted, ["aborted"])
  await aborted.abort()
  const committed = await producer.transaction()
  await write(topic, committed, ["committed"])
  await committed.commit()
  await producer.disconnect()
  assert.deepStrictEqual(await read(topic, 1), ["committed"])
})

test("a group goes on where it was", patience, async () => {
  const topic = await newTopic()
  const groupId = randomUUID()
  const producer = kafka.producer()
  await producer.connect()
  await write(topic, producer, ["first"])
  assert.deepStrictEqual(await read(topic, 1, groupId), ["first"])
  await write(topic, producer, ["second"])
  await producer.disconnect()
  assert.deepStrictEqual(await read(topic, 1, groupId), ["second"])
})

test("admin requests are answered", patience, async () => {
  const topic = await newTopic()
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  assert.strictEqual((await admin.fetchTopicOffsets(topic)).length, 3)
  const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: 2, name: topic }] })
  assert.strictEqual(resources[0].errorCode, 0)
  await admin.deleteTopics({ topics: [topic] })
  assert.ok(!(await admin.listTopics()).includes(topic))
})
