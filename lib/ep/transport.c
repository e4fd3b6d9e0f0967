/* What all transports have in common: messages that came, waiting for them, the bell. */
#include "ep/transport_impl.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "ep/link.h"

/* ---- memory ---- */

static bool add(size_t *sum, size_t n)
{
	return !__builtin_add_overflow(*sum, n, sum);
}

static int layout_make(struct layout *l, const struct transport_config *c, struct ds_err *err)
{
	size_t world, largest = SIZE_MAX / 8;

	*l = (struct layout){ .page = (size_t)sysconf(_SC_PAGESIZE) };
	for (size_t k = 0; k < SLOT_KINDS; k++) {
		if (c->bytes[k] > largest)
			return err_set(err, DS_CONFIG, "a message of %zu bytes is more than memory can hold",
				c->bytes[k]);
		l->slot[k] = round_up(sizeof(struct slot) + c->bytes[k], l->page);
		l->first[k] = l->part;
		if (!add(&l->part, EP_LANES * l->slot[k]))
			goto much;
	}
	l->early = l->part;
	if (!add(&l->part, l->slot[SLOT_VOTE]) || !mem_mul(l->part, c->world, &world) || world > largest)
		goto much;
	l->total = l->page + world;
	return 0;
much:
	return err_set(err, DS_CONFIG, "messages of %zu and %zu bytes of %zu ranks are more than memory can hold",
		c->bytes[SLOT_DISPATCH], c->bytes[SLOT_COMBINE], c->world);
}

struct slot *slot_at(const struct layout *l, void *part, enum slot_kind kind, size_t lane)
{
	return (struct slot *)((char *)part + l->first[kind] + lane * l->slot[kind]);
}

void *own_part(struct transport *t, size_t src)
{
	return (char *)t->own + t->layout.page + src * t->layout.part;
}

/* ---- the futex of a receive memory ---- */

static void futex_wake(struct control *c)
{
	syscall(SYS_futex, &c->events, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* until: of CLOCK_MONOTONIC; 0: for ever. */
static void futex_wait(struct control *c, uint32_t events, int64_t until)
{
	struct timespec t = { until / 1000000000, until % 1000000000 };

	syscall(SYS_futex, &c->events, FUTEX_WAIT_BITSET, events, until ? &t : NULL, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void bell_ring(int fd)
{
	while (write(fd, &(uint64_t){ 1 }, sizeof(uint64_t)) < 0 && errno == EINTR)
		;
}

static void slot_fill(struct slot *s, uint64_t seq, size_t bytes, int64_t ready_ns)
{
	atomic_store_explicit(&s->bytes, bytes, memory_order_relaxed);
	atomic_store_explicit(&s->ready_ns, ready_ns, memory_order_relaxed);
	atomic_store_explicit(&s->seq, seq, memory_order_seq_cst);
}

/* Sequentially consistent with transport_wait and transport_park, which say that they sleep before they look a last
 * time: one of the two sees what the other did. */
void slot_post(struct slot *s, struct control *c, int bell, enum slot_kind kind, uint64_t seq, size_t bytes,
	int64_t ready_ns)
{
	slot_fill(s, seq, bytes, ready_ns);
	atomic_fetch_add_explicit(&c->events, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&c->waiting, memory_order_seq_cst))
		futex_wake(c);
	if (kind == SLOT_VOTE && atomic_load_explicit(&c->parked, memory_order_seq_cst))
		bell_ring(bell);
}

/* ---- beginning and end ---- */

int transport_new(struct transport **out, const char *kind, const struct transport_config *c, struct ds_err *err)
{
	static const struct transport_ops *const all[] = { &transport_shm, &transport_tcp };
	struct transport *t = mem_calloc(1, sizeof(*t));
	pthread_condattr_t attr;

	*out = NULL;
	if (!t)
		return err_nomem(err, sizeof(*t), "a transport");
	t->cfg = *c;
	t->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	t->stat = mem_calloc(c->world, sizeof(*t->stat));
	pthread_mutex_init(&t->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->cond, &attr);
	pthread_condattr_destroy(&attr);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (!strcmp(all[i]->name, kind))
			t->ops = all[i];
	if (!t->ops)
		err_set(err, DS_USAGE, "no transport '%s'; there are 'shm' and 'tcp'", kind);
	else if (t->bell < 0)
		err_errno(err, DS_OS, "cannot make an event descriptor");
	else if (!t->stat)
		err_nomem(err, c->world * sizeof(*t->stat), "statistics");
	else if (!layout_make(&t->layout, c, err) && !t->ops->start(t, err)) {
		*out = t;
		return 0;
	}
	transport_free(t);
	return err->code;
}

void transport_free(struct transport *t)
{
	if (!t)
		return;
	if (t->ops)
		t->ops->stop(t);
	if (t->bell >= 0)
		close(t->bell);
	pthread_cond_destroy(&t->cond);
	pthread_mutex_destroy(&t->lock);
	free(t->stat);
	free(t);
}

int transport_epoch(struct transport *t, uint64_t epoch, const struct ranks *members, struct ds_err *err)
{
	if (t->cfg.link.delay_ns || t->cfg.link.rate)
		prctl(PR_SET_TIMERSLACK, 1); /* of this thread: 50 us would be added to each delay */
	t->members = *members;
	t->link_busy_ns = 0;
	return transport_over(t, epoch) ? EP_BROKEN : t->ops->epoch(t, epoch, err);
}

void transport_break(struct transport *t, uint64_t before)
{
	pthread_mutex_lock(&t->lock);
	if (atomic_load_explicit(&t->broken, memory_order_relaxed) < before)
		atomic_store_explicit(&t->broken, before, memory_order_seq_cst);
	if (t->own) {
		atomic_fetch_add_explicit(&t->own->events, 1, memory_order_seq_cst);
		futex_wake(t->own);
	}
	pthread_cond_broadcast(&t->cond);
	pthread_mutex_unlock(&t->lock);
	transport_ring(t);
}

/* ---- messages ---- */

void *transport_slot(struct transport *t, size_t dst, enum slot_kind kind, size_t lane)
{
	return dst == t->cfg.rank ? own_slot(t, dst, kind, lane)->data : t->ops->slot(t, dst, kind, lane)->data;
}

void transport_post(struct transport *t, size_t dst, enum slot_kind kind, size_t lane, uint64_t seq, size_t bytes)
{
	int64_t now = time_mono_ns();

	if (dst == t->cfg.rank) {
		slot_fill(own_slot(t, dst, kind, lane), seq, bytes, now);
		return;
	}
	t->stat[dst].sent++;
	t->stat[dst].sent_bytes += bytes;
	t->ops->post(t, dst, kind, lane, seq, bytes, link_there(&t->cfg.link, &t->link_busy_ns, bytes, now));
}

const void *transport_message(struct transport *t, size_t src, enum slot_kind kind, size_t lane, size_t *bytes,
	int64_t *when_ns)
{
	struct slot *s = own_slot(t, src, kind, lane);
	uint64_t n = atomic_load_explicit(&s->bytes, memory_order_relaxed);

	*bytes = n < t->cfg.bytes[kind] ? (size_t)n : t->cfg.bytes[kind];
	*when_ns = atomic_load_explicit(&s->ready_ns, memory_order_relaxed);
	return s->data;
}

/* ---- waiting ---- */

struct wanted { enum slot_kind kind; size_t lane; uint64_t seq; };

static bool message_came(struct transport *t, size_t src, const struct wanted *w)
{
	return atomic_load_explicit(&own_slot(t, src, w->kind, w->lane)->seq, memory_order_seq_cst) == w->seq;
}

static bool message_missing(struct transport *t, size_t src, const void *w)
{
	return !message_came(t, src, w);
}

static int64_t message_ready_ns(struct transport *t, size_t src, const struct wanted *w)
{
	return atomic_load_explicit(&own_slot(t, src, w->kind, w->lane)->ready_ns, memory_order_relaxed);
}

/* The first of `from`, at or after r, whose message is not there at `now`; EP_MAX_WORLD: none. */
static size_t first_missing(struct transport *t, const struct wanted *w, const struct ranks *from, size_t r,
	int64_t now)
{
	for (r = ranks_next(from, r); r < EP_MAX_WORLD; r = ranks_next(from, r + 1))
		if (!message_came(t, r, w) || message_ready_ns(t, r, w) > now)
			break;
	return r;
}

void transport_expect(struct transport *t, const struct ranks *who, bool (*missing)(struct transport *t, size_t r,
	const void *arg), const void *arg)
{
	struct ranks asked = { { 0 } };

	for (size_t r = ranks_next(who, 0); r < EP_MAX_WORLD; r = ranks_next(who, r + 1))
		if (r != t->cfg.rank && missing(t, r, arg))
			ranks_add(&asked, r);
	mesh_expect(t->cfg.mesh, MESH_ASK_TRANSPORT, &asked);
}

static void count_received(struct transport *t, const struct wanted *w, const struct ranks *from, int64_t start)
{
	int64_t now = time_mono_ns(), last = start;
	size_t late = EP_MAX_WORLD;

	for (size_t r = ranks_next(from, 0); r < EP_MAX_WORLD; r = ranks_next(from, r + 1)) {
		size_t bytes;
		int64_t when;

		if (r == t->cfg.rank)
			continue;
		transport_message(t, r, w->kind, w->lane, &bytes, &when);
		t->stat[r].received++;
		t->stat[r].received_bytes += bytes;
		if (when > last && when <= now) {
			last = when;
			late = r;
		}
	}
	if (late < EP_MAX_WORLD)
		t->stat[late].waited_ns += last - start;
}

/* Sleeps until something happens after `events`, the message of r is there, or it is time to ask for signs of life;
 * returns when that is (0: it has been done). */
static int64_t sleep_for(struct transport *t, uint32_t events, const struct wanted *w, const struct ranks *from,
	size_t r, int64_t ask_ns, int64_t now)
{
	bool came = message_came(t, r, w);

	if (!came && (!ask_ns || now >= ask_ns)) {
		transport_expect(t, from, message_missing, w);
		ask_ns = 0;
	}
	atomic_store_explicit(&t->own->waiting, 1, memory_order_seq_cst);
	futex_wait(t->own, events, came ? message_ready_ns(t, r, w) : ask_ns);
	atomic_store_explicit(&t->own->waiting, 0, memory_order_relaxed);
	return ask_ns;
}

static void relax(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

int transport_wait(struct transport *t, enum slot_kind kind, size_t lane, uint64_t seq, const struct ranks *from)
{
	const struct wanted w = { kind, lane, seq };
	const struct ranks nobody = { { 0 } };
	int64_t start = time_mono_ns(), now = start, ask_ns = start + mesh_peer_timeout(t->cfg.mesh) / 8;
	size_t r = 0;
	int rc = EP_BROKEN;

	for (;;) {
		uint32_t events = atomic_load_explicit(&t->own->events, memory_order_seq_cst);

		if (transport_over(t, atomic_load_explicit(&t->epoch, memory_order_relaxed)))
			break;
		r = first_missing(t, &w, from, r, now);
		if (r >= EP_MAX_WORLD) {
			count_received(t, &w, from, start);
			rc = 0;
			break;
		}
		if (now - start >= t->cfg.spin_ns)
			ask_ns = sleep_for(t, events, &w, from, r, ask_ns, now);
		else
			relax();
		now = time_mono_ns();
	}
	if (!ask_ns)
		mesh_expect(t->cfg.mesh, MESH_ASK_TRANSPORT, &nobody);
	return rc;
}

bool transport_there(struct transport *t, enum slot_kind kind, size_t lane, uint64_t seq, const struct ranks *from)
{
	const struct wanted w = { kind, lane, seq };

	return transport_over(t, atomic_load_explicit(&t->epoch, memory_order_relaxed)) ||
		first_missing(t, &w, from, 0, time_mono_ns()) >= EP_MAX_WORLD;
}

/* ---- the bell ---- */

static bool may_park(struct transport *t, size_t lane, uint64_t seq)
{
	if (transport_over(t, atomic_load_explicit(&t->epoch, memory_order_relaxed)))
		return false;
	for (size_t r = ranks_next(&t->members, 0); r < EP_MAX_WORLD; r = ranks_next(&t->members, r + 1))
		if (atomic_load_explicit(&own_slot(t, r, SLOT_VOTE, lane)->seq, memory_order_seq_cst) >= seq)
			return false;
	return true;
}

bool transport_park(struct transport *t, bool on, size_t lane, uint64_t seq)
{
	uint64_t rung;

	if (!t->own) /* no epoch has begun: there is a vote to take part in */
		return false;
	atomic_store_explicit(&t->own->parked, on, memory_order_seq_cst);
	(void)!read(t->bell, &rung, sizeof(rung)); /* for what was seen to already; who comes now rings again */
	if (on && may_park(t, lane, seq))
		return true;
	atomic_store_explicit(&t->own->parked, 0, memory_order_relaxed);
	return !on;
}

void transport_linger(struct transport *t, size_t lane, uint64_t seq)
{
	int64_t until = time_mono_ns() + t->cfg.spin_ns;

	while (t->own && may_park(t, lane, seq) && time_mono_ns() < until)
		relax();
}

int transport_bell_fd(const struct transport *t)
{
	return t->bell;
}

void transport_ring(struct transport *t)
{
	bell_ring(t->bell);
}

void transport_stat(const struct transport *t, size_t peer, struct transport_peer *s)
{
	*s = t->stat[peer];
}

/* ---- what the mesh brings ---- */

void transport_message_in(struct transport *t, size_t from, unsigned type, const void *data, size_t n, const int *fds,
	size_t fd_count)
{
	if (t->ops->message) {
		t->ops->message(t, from, type, data, n, fds, fd_count);
		return;
	}
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
}

void *transport_put_in(struct transport *t, size_t from, const struct mesh_put *h)
{
	if (!t->ops->put || h->kind >= SLOT_KINDS || h->lane >= EP_LANES || h->bytes > t->cfg.bytes[h->kind] ||
		from == t->cfg.rank)
		return MESH_REFUSED;
	return t->ops->put(t, from, h);
}

void transport_put_done(struct transport *t, size_t from, const struct mesh_put *h)
{
	t->ops->put_done(t, from, h);
}
