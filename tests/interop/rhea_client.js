// rhea, the AMQP 1.0 client of Node.js, in the stories that test_amqp10_rhea.py has it tell:
//
//     node rhea_client.js STORY PORT QUEUE     prints one line of JSON, ends with 0
//
'use strict';

const rhea = require('rhea');
const [, , story, port, queue] = process.argv;

const found = { bodies: [], events: [] };
const opened = [];

function connect(options) {
    const connection = rhea.create_container().connect(Object.assign(
        { port: Number(port), host: '127.0.0.1', username: 'guest', password: 'guest', reconnect: false },
        options));
    opened.push(connection);
    return connection;
}

// All connections are closed, and what was found is printed.
function end() {
    clearTimeout(clock);
    let open = opened.length;
    opened.forEach((connection) => {
        connection.on('connection_close', () => {
            open -= 1;
            if (!open) {
                console.log(JSON.stringify(found));
                process.exit(0);
            }
        });
        connection.close();
    });
}

const clock = setTimeout(() => {
    console.error('not done after 20 s; so far: ' + JSON.stringify(found));
    process.exit(1);
}, 20000);

// Sends all messages as credit allows; then calls next.
function fill(connection, options, messages, next) {
    const sender = connection.open_sender(options);
    let sent = 0;
    let settled = 0;
    sender.on('sendable', () => {
        while (sent < messages.length && sender.sendable()) {
            sender.send(messages[sent++]);
        }
        if (options.snd_settle_mode === 1 && sent === messages.length) {
            sent += 1;
            next(sender);
        }
    });
    sender.on('settled', () => {
        settled += 1;
        if (settled === messages.length) next(sender);
    });
    return sender;
}

function numbers(count) {
    return [...Array(count).keys()].map((i) => ({
        body: i,
        durable: true,
        application_properties: { n: i, colour: i % 2 ? 'green' : 'red' },
    }));
}

const stories = {
    // Every type of value, and every property, there and back.
    types() {
        const connection = connect();
        const types = rhea.types;
        const message = {
            durable: true, priority: 7, ttl: 600000,
            message_id: 'm', user_id: 'guest', to: 'somewhere', subject: 's', reply_to: '/queues/r',
            correlation_id: types.wrap_ulong(5), content_type: 'a/b', content_encoding: 'x',
            absolute_expiry_time: 1900000000000, creation_time: 1600000000000,
            group_id: 'g', group_sequence: 7, reply_to_group_id: 'rg',
            message_annotations: { 'x-opt-mine': 'here' },
            application_properties: { text: 'grüße', int: 5, yes: true, double: 1.5 },
            body: {
                list: [1, 'a', null], map: { k: { n: 1 } }, long: types.wrap_long(-5),
                ubyte: types.wrap_ubyte(255), symbol: types.wrap_symbol('sym'), double: 0.25,
                array: types.wrap_array([1, 2, 3], 0x71), nothing: null, no: false,
            },
        };
        fill(connection, { target: queue }, [message], () => {
            connection.open_receiver(queue).on('message', (context) => {
                const got = context.message;
                got.user_id = got.user_id.toString();
                found.message = got;
                end();
            });
        });
    },

    // A thousand through a window of fifty.
    many() {
        const connection = connect();
        fill(connection, { target: queue }, numbers(1000), () => {
            connection.open_receiver({ source: queue, credit_window: 50 }).on('message', (context) => {
                found.bodies.push(context.message.body);
                if (found.bodies.length === 1000) context.receiver.close();
            }).on('receiver_close', end);
        });
    },

    // Data sections of many frames, of the client's own small size.
    large() {
        const connection = connect({ max_frame_size: 2048 });
        const body = Buffer.alloc(500000, 'abcdefg');
        fill(connection, { target: queue }, [1, 2].map(() => ({ body: rhea.message.data_section(body) })), () => {
            connection.open_receiver(queue).on('message', (context) => {
                found.bodies.push(context.message.body.content.equals(body));
                if (found.bodies.length === 2) end();
            });
        });
    },

    // Credit by hand: three of five, a drain of ten, one of an empty queue, then new credit.
    drain() {
        const connection = connect();
        const sender = fill(connection, { target: queue }, numbers(5), () => {
            const receiver = connection.open_receiver({ source: queue, credit_window: 0 });
            receiver.add_credit(3);
            receiver.on('message', (context) => {
                found.bodies.push(context.message.body);
                if (found.bodies.length === 3) {
                    setTimeout(() => {
                        found.events.push(found.bodies.length);
                        receiver.add_credit(10);
                        receiver.drain_credit();
                    }, 200);
                } else if (context.message.body === 'later') {
                    found.events.push(receiver.credit);
                    end();
                }
            });
            let drains = 0;
            receiver.on('receiver_drained', () => {
                found.events.push(['drained', found.bodies.length, receiver.credit, receiver.delivery_count]);
                drains += 1;
                if (drains === 1) {
                    receiver.add_credit(4);
                    receiver.drain_credit();
                } else {
                    receiver.drain = false;
                    receiver.add_credit(2);
                    sender.send({ body: 'later' });
                }
            });
        });
    },

    // Mode second: we say accepted, the broker settles, and only then do we.
    second() {
        const connection = connect();
        fill(connection, { target: queue }, numbers(10), () => {
            const receiver = connection.open_receiver(
                { source: queue, rcv_settle_mode: 1, autoaccept: false, credit_window: 10 });
            const held = [];
            receiver.on('message', (context) => {
                held.push(context.delivery);
                if (held.length === 10) {
                    setTimeout(() => {
                        found.events.push(receiver.rcv_settle_mode);
                        held.forEach((delivery) => delivery.accept());
                    }, 100);
                }
            });
            receiver.on('settled', (context) => {
                found.bodies.push(context.delivery.id);
                if (found.bodies.length === 10) end();
            });
        });
    },

    // Requests to a queue; answers, over the anonymous terminus, to a dynamic node.
    rpc() {
        const service = connect();
        service.open_receiver(queue).on('message', (context) => {
            const request = context.message;
            service.send({ to: request.reply_to, body: request.body.toUpperCase(), correlation_id: request.correlation_id });
        });
        const client = connect();
        const sender = client.open_sender(queue);
        const receiver = client.open_receiver({ source: { dynamic: true } });
        const ask = (i) => sender.send({ body: 'q' + i, correlation_id: i, reply_to: receiver.source.address });
        receiver.on('receiver_open', () => {
            found.address = receiver.source.address;
            ask(0);
        });
        receiver.on('message', (context) => {
            found.bodies.push([context.message.correlation_id, context.message.body]);
            if (found.bodies.length === 10) end();
            else ask(found.bodies.length);
        });
    },

    // Settled on the way in and out; and a source that is asked to be durable.
    settled() {
        const connection = connect();
        fill(connection, { target: queue, snd_settle_mode: 1 }, numbers(20), () => {
            connection.open_receiver({
                source: { address: queue, durable: 2, expiry_policy: 'never' }, snd_settle_mode: 1,
            }).on('message', (context) => {
                found.bodies.push(context.message.body);
                found.events.push(context.delivery.remote_settled);
                if (found.bodies.length === 20) {
                    found.durable = context.receiver.source.durable || 0;
                    context.receiver.close();
                }
            }).on('receiver_close', end);
        });
    },

    // The older selector form.
    selector() {
        const connection = connect();
        fill(connection, { target: queue }, numbers(10), () => {
            connection.open_receiver(
                { source: { address: queue, filter: rhea.filter.selector("colour = 'green' AND n > 4") } },
            ).on('receiver_open', (context) => {
                found.filter = Object.keys(context.receiver.source.filter || {});
            }).on('message', (context) => {
                found.bodies.push(context.message.body);
                if (found.bodies.length === 3) context.receiver.close();
            }).on('receiver_close', end);
        });
    },

    // Looking only.
    browse() {
        const connection = connect();
        fill(connection, { target: queue }, numbers(3), () => {
            connection.open_receiver({ source: { address: queue, distribution_mode: 'copy' } }).on('message', (context) => {
                found.bodies.push(context.message.body);
                if (found.bodies.length === 3) context.receiver.close();
            }).on('receiver_close', end);
        });
    },

    // Released, modified and rejected ones.
    outcomes() {
        const connection = connect();
        fill(connection, { target: queue }, numbers(3), () => {
            const receiver = connection.open_receiver({ source: queue, autoaccept: false, credit_window: 1 });
            receiver.on('message', (context) => {
                const { message, delivery } = context;
                found.bodies.push([message.body, message.delivery_count || 0,
                    (message.message_annotations || {})['x-opt-why'] || null]);
                const times = found.bodies.filter((one) => one[0] === message.body).length;
                if (message.body === 0 && times === 1) delivery.release();
                else if (message.body === 1 && times === 1) {
                    delivery.modified({ delivery_failed: true, message_annotations: { 'x-opt-why': 'busy' } });
                } else if (message.body === 2) delivery.reject({ condition: 'app:bad', description: 'no good' });
                else delivery.accept();
                if (message.body === 2) setTimeout(end, 100);
            });
        });
    },

    // What the broker says of messages that nobody gets, and of what is not there.
    refusals() {
        const connection = connect();
        const lost = connection.open_sender('/exchanges/amq.topic/nobody');
        lost.on('sendable', () => {
            lost.removeAllListeners('sendable');
            lost.send({ body: 1 });
        });
        lost.on('released', () => {
            found.events.push('released');
            connection.open_receiver('/queues/nobody').on('receiver_error', (context) => {
                found.events.push(context.receiver.error.condition);
                connection.open_sender(queue).on('sendable', (again) => {
                    again.sender.removeAllListeners('sendable');
                    again.sender.send({ body: 1 });
                }).on('accepted', () => {
                    found.events.push('accepted');
                    end();
                });
            });
        });
    },

    // A heartbeat each half second, twice as often as asked for, for two seconds of nothing.
    idle() {
        const connection = connect({ idle_time_out: 1000 });
        connection.open_receiver(queue).on('message', (context) => {
            found.bodies.push(context.message.body);
            end();
        });
        connection.on('disconnected', () => found.events.push('disconnected'));
        setTimeout(() => connection.send({ to: queue, body: 'still here' }), 2500);
    },
};

rhea.on('error', (error) => {
    console.error(error);
    process.exit(1);
});
stories[story]();
