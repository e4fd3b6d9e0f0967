/*
 * What moves messages of dispatch and combine between the ranks of a unit: a put into the peer's memory with a signal,
 * as an RDMA write is.  Behind it: shared memory (shm), the mesh's connections (tcp), later verbs and NCCL.
 *
 * Each rank has a receive slot for every (kind, lane, source).  The writer fills its side of it (transport_slot) and
 * posts; the reader waits for the messages of all it expects and reads them where they lie.  There is no flow control:
 * the protocol above makes sure that a slot was read before it is written again, since every message is an answer to
 * one of the reader's.  Votes alternate between lanes for that.
 *
 * seq counts the collectives of one (kind, lane) in an epoch from 1, the same on all ranks.  Messages of another epoch
 * are never seen: memory is fresh in each (a process that was stopped and excluded cannot write into what is read).
 *
 * The compute thread calls, except where "any thread" is said.  Nothing spins but for spin_ns at the beginning of a
 * wait; then it sleeps in the kernel.
 */
#ifndef DS_EP_TRANSPORT_H
#define DS_EP_TRANSPORT_H

#include "ep/mesh.h"

enum slot_kind { SLOT_VOTE, SLOT_DISPATCH, SLOT_COMBINE, SLOT_KINDS };
enum { EP_LANES = 2 };
/* Not an exit code: an answer that the membership changed while one waited. */
enum { EP_BROKEN = -1 };

struct transport;

/* The imitation of a network: a message is there `delay` after it has left, and it leaves when those before it to any
 * peer have, at `rate` bytes a second (0: at once).  A delay, not work: no thread sleeps for it that could compute. */
struct link { int64_t delay_ns; uint64_t rate; };

struct transport_config {
	struct mesh *mesh;
	size_t rank, world;
	size_t bytes[SLOT_KINDS]; /* most of one message of a kind */
	struct link link;
	int64_t spin_ns;
};

/* Per peer, since the start, 0 of this rank itself; waited_ns: how long waits went on for which this peer's message was
 * the last. */
struct transport_peer { uint64_t sent_bytes, received_bytes, sent, received; int64_t waited_ns; };

struct transport_ops; /* ep/transport_impl.h: what shm.c and tcp.c implement */

/* kind: "shm" or "tcp".  DS_USAGE for another, DS_OS. */
int transport_new(struct transport **t, const char *kind, const struct transport_config *c, struct ds_err *err);
void transport_free(struct transport *t); /* after mesh_free */

/* Begins an epoch among these members, this rank one of them, all of which begin the same: gives up the memory of the
 * last one, with what was posted and has not left, and returns when that of all peers is known.  EP_BROKEN if a
 * transport_break comes, also one that came since the last epoch was begun for a greater one than this; else DS_OS. */
int transport_epoch(struct transport *t, uint64_t epoch, const struct ranks *members, struct ds_err *err);
/* Any thread: what waits in an epoch older than `before` returns EP_BROKEN, now and whenever it is tried. */
void transport_break(struct transport *t, uint64_t before);

/* Memory for the next message to dst (may be this rank), [bytes[kind]], aligned to 64, until it is posted. */
void *transport_slot(struct transport *t, size_t dst, enum slot_kind kind, size_t lane);
void transport_post(struct transport *t, size_t dst, enum slot_kind kind, size_t lane, uint64_t seq, size_t bytes);
/* Until the messages `seq` of all of `from` are there.  0 or EP_BROKEN. */
int transport_wait(struct transport *t, enum slot_kind kind, size_t lane, uint64_t seq, const struct ranks *from);
/* True where a wait would return at once. */
bool transport_there(struct transport *t, enum slot_kind kind, size_t lane, uint64_t seq, const struct ranks *from);
/* The message that was waited for, and when it was there (time_mono_ns; when_ns may be NULL). */
const void *transport_message(struct transport *t, size_t src, enum slot_kind kind, size_t lane, size_t *bytes,
	int64_t *when_ns);

/*
 * A rank that has nothing to do sleeps in its own poll, not in transport_wait.  park(true, ...) returns true where it
 * may: from then on bell_fd becomes readable when a vote comes (or transport_ring is called).  False: one of `seq` or
 * later in this lane is there already, or the epoch is broken.  park(false) clears the bell, which may still ring once
 * for a vote that was seen already.  transport_break rings it.
 */
bool transport_park(struct transport *t, bool on, size_t lane, uint64_t seq);
/* Before that, where one is likely to come soon: for spin_ns at most, until there is such a vote. */
void transport_linger(struct transport *t, size_t lane, uint64_t seq);
int transport_bell_fd(const struct transport *t);
void transport_ring(struct transport *t); /* any thread */

void transport_stat(const struct transport *t, size_t peer, struct transport_peer *s);

/* Any thread, called by the owner of the mesh's callbacks: puts and messages of these types belong to the transport. */
enum { MESH_TRANSPORT_FIRST = 64, MESH_TRANSPORT_LAST = 79 };
void transport_message_in(struct transport *t, size_t from, unsigned type, const void *data, size_t n, const int *fds,
	size_t fd_count);
void *transport_put_in(struct transport *t, size_t from, const struct mesh_put *h);
void transport_put_done(struct transport *t, size_t from, const struct mesh_put *h);

#endif
