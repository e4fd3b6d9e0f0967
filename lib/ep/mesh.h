/*
 * The connections of a rank to the others of its unit, one stream socket a pair, and the one thread that serves them.
 *
 * The thread blocks in epoll; while nothing is asked of it nothing is sent and nothing wakes it.  Control messages are
 * copied and queued; puts (the tcp transport's payloads) are sent from where they lie and read straight into place.
 * All values on a connection are little-endian.
 *
 * A peer is lost when its connection ends or fails, or when it was asked for a sign of life (mesh_expect) and no byte
 * came from it within the peer timeout.  A process that computes answers from this thread, so that slow is not dead.
 */
#ifndef DS_EP_MESH_H
#define DS_EP_MESH_H

#include "base/err.h"
#include "ep/ranks.h"

struct mesh;

enum { MESH_MOST_BYTES = 64 << 20, MESH_MOST_FDS = 4 }; /* of a control message */
enum { MESH_TYPES = 1 << 16 };                           /* types of control messages are below this */
#define MESH_REFUSED ((void *)-1)                        /* the answer to a put that makes no sense */

/* Who waits for signs of life: what one asks for does not change what the other does. */
enum mesh_asker { MESH_ASK_TRANSPORT, MESH_ASK_UNIT, MESH_ASKERS };

/* A payload that goes into the peer's memory.  What the numbers mean is the transport's affair. */
struct mesh_put {
	uint64_t epoch, seq;
	uint32_t kind, lane;
	uint64_t bytes;
};

/* Called on the mesh's thread, which must not be kept waiting.  ctx: mesh_config.ctx. */
struct mesh_ops {
	/* A control message; data is valid during the call, aligned to 8; the descriptors are the callee's now. */
	void (*message)(void *ctx, size_t from, unsigned type, const void *data, size_t n, const int *fds,
		size_t fd_count);
	/* Where the payload of this put goes, which is read after this returns; NULL: it is read and dropped;
	 * MESH_REFUSED: the peer is lost. */
	void *(*put)(void *ctx, size_t from, const struct mesh_put *h);
	void (*put_done)(void *ctx, size_t from, const struct mesh_put *h); /* it is there; not for a dropped one */
	/* The peer is lost, its connection closed; why, without its name.  Once for each mesh_add. */
	void (*lost)(void *ctx, size_t from, const struct ds_err *why);
	void (*timer)(void *ctx); /* mesh_timer's time has come */
};

struct mesh_config {
	size_t rank, world;
	int64_t peer_timeout_ns;
	const struct mesh_ops *ops;
	void *ctx;
};

/* Makes the thread; it has no connection yet.  DS_OS. */
int mesh_new(struct mesh **m, const struct mesh_config *c, struct ds_err *err);
/* Sends what is queued for a moment (at most a tenth of a second), ends the thread, closes everything.  No callback
 * begins any more but what mesh_call was given. */
void mesh_free(struct mesh *m);

/* ---- from any thread ---- */

/* fd becomes the connection to peer (the mesh's to close); an earlier one is dropped without lost(). */
void mesh_add(struct mesh *m, size_t peer, int fd);
void mesh_drop(struct mesh *m, size_t peer); /* without lost() */
/* Queues a copy; the descriptors are duplicated (unix sockets only).  To a peer that is not connected: nothing happens.
 * DS_OS. */
int mesh_send(struct mesh *m, size_t peer, unsigned type, const void *data, size_t n, const int *fds, size_t fd_count,
	struct ds_err *err);
/* Queues a put that is not sent before the clock is at due_ns (time_mono_ns; the imitation of a slow link).  data stays
 * where it is until mesh_free or mesh_forget; it may be written over once the peer must have had it.  A put held back
 * keeps back those behind it to the same peer, not control messages.
 * Over a connection that was added since the last mesh_forget nothing is sent: a caller that does not know of it yet
 * means the one before, where another process may have been. */
void mesh_put(struct mesh *m, size_t peer, const struct mesh_put *h, const void *data, int64_t due_ns);
/* Drops the puts that have not begun to leave; those half sent go on from a copy.  When it returns what their data was
 * may be written over, and every connection that there is takes puts.  Not from the mesh's thread, and not with a lock
 * held that a callback takes. */
void mesh_forget(struct mesh *m);
/* These are waited for by this asker: who stays silent is asked for a sign of life, from a quarter of the timeout on.
 * An empty set: nobody is. */
void mesh_expect(struct mesh *m, enum mesh_asker asker, const struct ranks *who);
int64_t mesh_peer_timeout(const struct mesh *m); /* of its configuration */
/* Runs fn(arg) on the mesh's thread, soon.  DS_OS. */
int mesh_call(struct mesh *m, void (*fn)(void *arg), void *arg, struct ds_err *err);

/* ---- from the mesh's thread (also before the first connection is added) ---- */

/* Watches one more descriptor for EPOLLIN/EPOLLOUT... events (0: no more); fn may close it after asking for 0. */
int mesh_watch(struct mesh *m, int fd, uint32_t events, void (*fn)(void *arg, int fd, uint32_t events), void *arg,
	struct ds_err *err);
/* ops->timer is called at this time (0: no more); the last call counts. */
void mesh_timer(struct mesh *m, int64_t due_ns);

#endif
