/*
 * What transport.c and the transports share: receive memory, how a message is put there, and the table of a transport.
 *
 * Receive memory is a page with struct control, then for each source one part: its slots [kind][lane] and one more for
 * a vote that came before its epoch, each of whole pages.
 */
#ifndef DS_EP_TRANSPORT_IMPL_H
#define DS_EP_TRANSPORT_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ep/transport.h"

/* Written by whoever sends: nothing in it is trusted. */
struct control {
	_Atomic uint32_t events;  /* grows with every message; a futex */
	_Atomic uint32_t waiting; /* somebody sleeps on it */
	_Atomic uint32_t parked;  /* a vote rings the bell */
};

struct slot {
	_Atomic uint64_t seq;     /* of the message that is there; 0: none */
	_Atomic uint64_t bytes;
	_Atomic int64_t ready_ns; /* when it is there */
	_Alignas(64) uint8_t data[];
};

struct layout {
	size_t page;
	size_t slot[SLOT_KINDS];  /* bytes of a slot of the kind */
	size_t first[SLOT_KINDS]; /* offset of its first lane in a part */
	size_t early;             /* offset of the slot of the vote that came early */
	size_t part;              /* bytes of a source */
	size_t total;
};

struct transport_ops {
	const char *name;
	int (*start)(struct transport *t, struct ds_err *err);
	void (*stop)(struct transport *t); /* also after a start that failed */
	int (*epoch)(struct transport *t, uint64_t epoch, struct ds_err *err); /* t->members are set, t->epoch is not */
	struct slot *(*slot)(struct transport *t, size_t dst, enum slot_kind kind, size_t lane);
	void (*post)(struct transport *t, size_t dst, enum slot_kind kind, size_t lane, uint64_t seq, size_t bytes,
		int64_t there_ns);
	void (*message)(struct transport *t, size_t from, unsigned type, const void *data, size_t n, const int *fds,
		size_t fd_count);
	void *(*put)(struct transport *t, size_t from, const struct mesh_put *h);
	void (*put_done)(struct transport *t, size_t from, const struct mesh_put *h);
};

extern const struct transport_ops transport_shm, transport_tcp;

struct transport {
	const struct transport_ops *ops;
	struct transport_config cfg;
	struct layout layout;
	pthread_mutex_t lock;          /* of `own` where another thread uses it, and what a transport says */
	pthread_cond_t cond;           /* an epoch may begin, or not */
	int bell;
	_Atomic uint64_t epoch;        /* that has begun */
	_Atomic uint64_t broken;       /* epochs before this are over */
	struct ranks members;
	struct control *own;           /* receive memory */
	int64_t link_busy_ns;
	struct transport_peer *stat;   /* [world] */
	void *state;                   /* of the transport */
};

struct slot *slot_at(const struct layout *l, void *part, enum slot_kind kind, size_t lane);
void *own_part(struct transport *t, size_t src);
static inline struct slot *own_slot(struct transport *t, size_t src, enum slot_kind kind, size_t lane)
{
	return slot_at(&t->layout, own_part(t, src), kind, lane);
}

/* The message whose data lie there is there: whoever waits is woken, the bell rung where a vote comes to one parked. */
void slot_post(struct slot *s, struct control *c, int bell, enum slot_kind kind, uint64_t seq, size_t bytes,
	int64_t ready_ns);
/* The epoch before which all are over has passed this one by. */
static inline bool transport_over(const struct transport *t, uint64_t epoch)
{
	return atomic_load_explicit(&t->broken, memory_order_acquire) > epoch;
}
/* Asks for signs of life of those of `who` that this returns true for. */
void transport_expect(struct transport *t, const struct ranks *who, bool (*missing)(struct transport *t, size_t r,
	const void *arg), const void *arg);

#endif
