/*
 * What mesh.c (the thread and its queues) and mesh_conn.c (one connection's bytes) share.
 *
 * On a connection every message is a head of WIRE_HEAD bytes and a body:
 *   u32 type, u32 descriptors with it, u64 epoch, u64 seq, u32 kind, u32 lane, u64 bytes of body
 * epoch, seq, kind and lane are a put's; 0 in other messages.
 */
#ifndef DS_EP_MESH_IMPL_H
#define DS_EP_MESH_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ep/mesh.h"

enum { WIRE_HEAD = 48 };
enum { WIRE_PUT = MESH_TYPES, WIRE_PING, WIRE_PONG };

/* What epoll knows a descriptor by. */
enum source_kind { SOURCE_WAKE, SOURCE_TIMER, SOURCE_CONN, SOURCE_WATCH };
struct source { enum source_kind kind; };

/* One message on its way out. */
struct parcel {
	struct parcel *next;
	uint8_t head[WIRE_HEAD];
	const uint8_t *data;     /* [n]: copy, or where a put lies */
	size_t n;
	int64_t due_ns;
	int fds[MESH_MOST_FDS];
	size_t fd_count;         /* not sent yet */
	bool put;
	uint8_t copy[];
};

struct parcels { struct parcel *first, *last; };

struct conn {
	struct source source;    /* first */
	struct mesh *mesh;
	size_t peer;
	int fd;
	bool local;              /* a unix socket */
	atomic_bool dropped;     /* nobody's peer any more: no callback, no bytes */
	struct conn *next_gone, *next_dirty;
	/* under the mesh's lock */
	struct parcels control, puts;
	bool known;              /* puts may go here: they are not meant for an earlier connection */
	bool dirty;              /* on the list of those with something new to send */
	/* the mesh's thread alone */
	struct parcel *out;      /* being sent */
	size_t out_done;
	bool blocked;            /* waits for EPOLLOUT */
	int64_t heard_ns, pinged_ns;
	uint8_t head[WIRE_HEAD];
	size_t head_got;
	int fds[MESH_MOST_FDS];  /* that came with this head */
	size_t fd_count;
	unsigned type;
	struct mesh_put in;      /* the message that comes in; in.bytes of any */
	uint64_t body_got;
	uint8_t *body;           /* [body_cap] of a control message */
	size_t body_cap;
	uint8_t *place;          /* of a put; NULL: dropped */
};

struct call {
	struct call *next;
	void (*fn)(void *arg);
	void *arg;
	bool owned; /* by the mesh: freed after it */
};

struct watch {
	struct source source; /* first */
	struct watch *next;
	int fd;
	void (*fn)(void *arg, int fd, uint32_t events);
	void *arg;
	bool dead;
};

struct mesh {
	struct mesh_config cfg;
	int epoll, wake, timer;
	struct source wake_source, timer_source;
	pthread_t thread;
	pthread_mutex_t lock;
	/* under the lock */
	struct conn **peers;           /* [world], NULL: not connected */
	struct conn *dirty, *gone;
	struct call *calls, **last_call;
	struct watch *watches;
	struct ranks expected[MESH_ASKERS];
	int64_t *since_ns;             /* [world] waited for since then */
	int64_t timer_ns;
	struct ranks failed;           /* no memory for a message to these */
	bool woken, stopping, any_failed;
	/* the thread's alone */
	int64_t *hold_ns;              /* [world] when the next put to it is due; 0: none is held back */
	int64_t now, deadline_ns, stop_ns;
};

extern _Thread_local const struct mesh *mesh_here; /* the mesh whose thread this is */

void mesh_lock(struct mesh *m);
void mesh_unlock(struct mesh *m);
/* With the lock held: c has something new to send. */
void mesh_mark_dirty(struct mesh *m, struct conn *c);
/* With the lock held: the peer's connection, if it is c or c is NULL, is no more.  False: it was not. */
bool mesh_forsake(struct mesh *m, size_t peer, struct conn *c);

/* The rest on the mesh's thread. */
void *mesh_run(void *m);
void mesh_arm(struct mesh *m, struct conn *c, bool out); /* whether it waits for room to send */
/* The connection is over; tells. */
void mesh_lose(struct conn *c, const struct ds_err *why);

/* NULL: no memory.  n bytes of data are copied unless it is a put. */
struct parcel *parcel_new(unsigned type, const struct mesh_put *h, const void *data, size_t n, bool put);
void parcel_free(struct parcel *p);
void parcels_add(struct parcels *q, struct parcel *p);
void parcels_free(struct parcels *q);

void conn_read(struct conn *c, int64_t now);
void conn_write(struct conn *c, int64_t now);
void conn_keep_half(struct conn *c); /* a half-sent put goes on from a copy */
void conn_close(struct conn *c);
void conn_free(struct conn *c);

#endif
