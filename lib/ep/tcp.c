/*
 * The transport of several machines: a message is written to memory of the sender, from which the mesh sends it
 * straight into the receive memory of the other.
 *
 * A sender whose epoch began earlier may send its vote before ours has begun: it waits in the slot for that.  It cannot
 * be ahead by more, since all else answers a vote of ours.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/time.h"
#include "ep/transport_impl.h"

struct tcp_peer {
	bool to_early;         /* the put that comes in now goes to the early slot */
	bool early;            /* a vote is there */
	struct mesh_put vote;
};

struct tcp {
	void *staging;           /* [world] parts, by destination */
	struct tcp_peer *peers;  /* [world], under the transport's lock */
};

static struct tcp_peer *tcp_peer(struct transport *t, size_t r)
{
	return &((struct tcp *)t->state)->peers[r];
}

static void *map_private(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int tcp_start(struct transport *t, struct ds_err *err)
{
	struct tcp *s = t->state = mem_calloc(1, sizeof(*s));

	if (!s)
		return err_nomem(err, sizeof(*s), "a transport");
	s->peers = mem_calloc(t->cfg.world, sizeof(*s->peers));
	s->staging = map_private(t->layout.total);
	t->own = map_private(t->layout.total);
	if (!s->peers || !s->staging || !t->own)
		return err_nomem(err, t->layout.total, "messages");
	return 0;
}

static void tcp_stop(struct transport *t)
{
	struct tcp *s = t->state;

	if (!s)
		return;
	if (s->staging)
		munmap(s->staging, t->layout.total);
	if (t->own)
		munmap(t->own, t->layout.total);
	free(s->peers);
	free(s);
}

static struct slot *tcp_slot(struct transport *t, size_t dst, enum slot_kind kind, size_t lane)
{
	struct tcp *s = t->state;

	return slot_at(&t->layout, (char *)s->staging + dst * t->layout.part, kind, lane);
}

static void tcp_post(struct transport *t, size_t dst, enum slot_kind kind, size_t lane, uint64_t seq, size_t bytes,
	int64_t there_ns)
{
	struct mesh_put h = { .epoch = atomic_load_explicit(&t->epoch, memory_order_relaxed), .seq = seq, .kind = kind,
		.lane = (uint32_t)lane, .bytes = bytes };

	mesh_put(t->cfg.mesh, dst, &h, tcp_slot(t, dst, kind, lane)->data, there_ns);
}

/* ---- what comes in ---- */

static struct slot *early_slot(struct transport *t, size_t src)
{
	return (struct slot *)((char *)own_part(t, src) + t->layout.early);
}

/* With the lock held. */
static void tcp_publish(struct transport *t, size_t src, const struct mesh_put *h)
{
	slot_post(own_slot(t, src, (enum slot_kind)h->kind, h->lane), t->own, t->bell, (enum slot_kind)h->kind, h->seq,
		(size_t)h->bytes, time_mono_ns());
}

static void tcp_publish_early(struct transport *t, size_t src, const struct mesh_put *h)
{
	memcpy(own_slot(t, src, (enum slot_kind)h->kind, h->lane)->data, early_slot(t, src)->data, (size_t)h->bytes);
	tcp_publish(t, src, h);
}

static void *tcp_put(struct transport *t, size_t from, const struct mesh_put *h)
{
	struct tcp_peer *p = tcp_peer(t, from);
	void *place = NULL;
	uint64_t epoch;

	pthread_mutex_lock(&t->lock);
	epoch = atomic_load_explicit(&t->epoch, memory_order_relaxed);
	p->to_early = h->epoch > epoch;
	if (p->to_early) {
		place = h->kind == SLOT_VOTE ? early_slot(t, from)->data : MESH_REFUSED;
		p->early = false;
	} else if (h->epoch == epoch) {
		struct slot *s = own_slot(t, from, (enum slot_kind)h->kind, h->lane);

		place = h->seq > atomic_load_explicit(&s->seq, memory_order_relaxed) ? s->data : MESH_REFUSED;
	}
	pthread_mutex_unlock(&t->lock);
	return place;
}

static void tcp_put_done(struct transport *t, size_t from, const struct mesh_put *h)
{
	struct tcp_peer *p = tcp_peer(t, from);
	uint64_t epoch;

	pthread_mutex_lock(&t->lock);
	epoch = atomic_load_explicit(&t->epoch, memory_order_relaxed);
	if (h->epoch > epoch) {
		p->early = true;
		p->vote = *h;
	} else if (h->epoch == epoch && p->to_early) {
		tcp_publish_early(t, from, h);
	} else if (h->epoch == epoch) {
		tcp_publish(t, from, h);
	}
	pthread_mutex_unlock(&t->lock);
}

/* Messages of the last epoch are forgotten, votes of this one that came early are there. */
static int tcp_epoch(struct transport *t, uint64_t epoch, struct ds_err *err)
{
	(void)err;
	mesh_forget(t->cfg.mesh);
	pthread_mutex_lock(&t->lock);
	atomic_store_explicit(&t->epoch, epoch, memory_order_release);
	for (size_t r = 0; r < t->cfg.world; r++) {
		struct tcp_peer *p = tcp_peer(t, r);

		for (size_t i = 0; i < SLOT_KINDS * EP_LANES; i++) {
			struct slot *s = own_slot(t, r, (enum slot_kind)(i / EP_LANES), i % EP_LANES);

			if (atomic_load_explicit(&s->seq, memory_order_relaxed)) /* a page not used is not touched */
				atomic_store_explicit(&s->seq, 0, memory_order_relaxed);
		}
		if (p->early && p->vote.epoch == epoch)
			tcp_publish_early(t, r, &p->vote);
		p->early = p->early && p->vote.epoch > epoch;
	}
	pthread_mutex_unlock(&t->lock);
	return transport_over(t, epoch) ? EP_BROKEN : 0;
}

const struct transport_ops transport_tcp = {
	.name = "tcp",
	.start = tcp_start,
	.stop = tcp_stop,
	.epoch = tcp_epoch,
	.slot = tcp_slot,
	.post = tcp_post,
	.put = tcp_put,
	.put_done = tcp_put_done,
};
