/*
 * Addresses and the descriptors behind them: "unix:PATH", "tcp:HOST:PORT" ([v6] in brackets), "fd:N", "-".
 */
#ifndef DS_NET_ADDR_H
#define DS_NET_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum addr_kind { ADDR_STDIO, ADDR_FD, ADDR_UNIX, ADDR_TCP };

struct addr {
	enum addr_kind kind;
	int fd;
	char path[108];
	char host[256], port[16];
	char text[300]; /* as given, for messages */
};

int addr_parse(const char *text, struct addr *a, struct ds_err *err); /* DS_USAGE */
/* A listening socket, non-blocking, close-on-exec.  A stale unix socket (nobody answers) is replaced, a live one
 * refused (DS_CONFIG).  A TCP address beyond loopback needs `anywhere` (the operator's explicit word), else DS_CONFIG
 * says so.  LISTEN_FDS and fd:N are taken as they are. */
int addr_listen(const struct addr *a, bool anywhere, int *fd, struct ds_err *err);
/* The same of unix:PATH and tcp:HOST:PORT, never a supervisor's socket; errno says why it failed.  over: a unix socket
 * is replaced though a process has it open (one that is known to have stopped).  A name that is not resolved by `until`
 * (CLOCK_MONOTONIC, 0: however long it takes) is DS_UNAVAILABLE. */
int addr_bind(const struct addr *a, bool anywhere, bool over, int64_t until, int *fd, struct ds_err *err);
/* Begins to connect a non-blocking socket, once, and does not wait: it is writable when that has ended, SO_ERROR says
 * how.  errno says why it failed. */
int addr_start(const struct addr *a, int *fd, struct ds_err *err);
/* The same, but a name that is not resolved by then (CLOCK_MONOTONIC, 0: however long it takes) is unavailable. */
int addr_start_until(const struct addr *a, int64_t until, int *fd, struct ds_err *err);
/* A connected non-blocking socket; retries refused or absent addresses until timeout_ns (services start in any
 * order). */
int addr_connect(const struct addr *a, int64_t timeout_ns, int *fd, struct ds_err *err);
/* The same; tell is called once when a second has gone by. */
int addr_connect_told(const struct addr *a, int64_t timeout_ns, void (*tell)(const struct addr *a), int *fd,
	struct ds_err *err);
/* Where a TCP socket listens, as an address (port 0 was the kernel's choice); other sockets: "". */
void addr_local(int fd, char *text, size_t cap);
/* Closes; removes the socket file if addr_listen made it. */
void addr_unlisten(const struct addr *a, int fd);
/* Grows a pipe to 1 MiB where it may. */
void fd_grow_pipe(int fd);
int fd_nonblock(int fd, bool on);
/* This process's writes alone do not block from here on: a pipe or terminal that others write to as well is opened a
 * second time for that, under the same number.  False: nothing has changed. */
bool fd_nonblock_apart(int fd);

#endif
