// rhea: connection_details is a function that goes through the list, and is asked at each attempt.
'use strict';

const rhea = require('rhea');
const [, , role, ports, queue] = process.argv;
const hosts = ports.split(',');

let attempt = 0;
let enough = false;
process.stdin.resume().on('end', () => { enough = true; });

const connection = rhea.create_container().connect({
    connection_details: () => ({ host: '127.0.0.1', port: Number(hosts[attempt++ % hosts.length]) }),
    username: 'guest',
    password: 'guest',
    initial_reconnect_delay: 100,
    max_reconnect_delay: 200,
});

if (role === 'publish') {
    let next = 0;
    let underWay = false;
    const sender = connection.open_sender(`/queues/${queue}`);
    const send = () => {
        if (enough) {
            process.exit(0);
        }
        if (!underWay && sender.sendable()) {
            underWay = true;
            sender.send({ body: next, durable: true });
        }
    };
    sender.on('sendable', send);
    sender.on('accepted', () => {
        console.log(`confirmed ${next}`);
        next += 1;
        underWay = false;
        send();
    });
    connection.on('disconnected', () => { underWay = false; }); // the same again, to whoever leads
} else {
    connection.open_receiver(`/queues/${queue}`).on('message', (context) => {
        console.log(`received ${context.message.body}`); // and is accepted when this returns
    });
    connection.on('disconnected', () => {});
}
