// One event stream for all tabs of a browser, which opens at most six connections to a host.
//
// A SharedWorker. Tabs join and leave; it passes the events on to all tabs that are there.
"use strict";

const tabs = new Set();
let stream = null;

function listen(address) {
  if (stream && stream.readyState !== EventSource.CLOSED) return;
  stream = new EventSource(address);
  stream.addEventListener("changed", (event) => {
    const changed = JSON.parse(event.data);
    for (const tab of tabs) tab.postMessage(changed);
  });
  stream.addEventListener("renew", () => {
    stop();
    listen(address);
  });
}

function stop() {
  stream?.close();
  stream = null;
}

onconnect = (connection) => {
  const [tab] = connection.ports;
  tab.onmessage = ({ data: { join } }) => {
    if (join) {
      tabs.add(tab);
      listen(join);
    } else {
      tabs.delete(tab);
      if (!tabs.size) stop();
    }
  };
};
