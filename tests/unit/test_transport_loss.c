/* The transports when ranks die, stop, go on where nobody waits for them any more, or tell nonsense. */
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "ep/transport_impl.h"
#include "rounds.h"
#include "tap.h"

static const char *const kinds[] = { "shm", "tcp" };

enum { AFTER = 60 }; /* rounds after the last loss */

struct hit { struct ranks victims; size_t losses; bool stopped, at_once; };

static struct crew_config crew_of(const char *transport, size_t world, const struct hit *hit,
	int (*run)(struct transport *t, size_t rank, const struct crew_config *c))
{
	return (struct crew_config){ .transport = transport, .world = world, .bytes = { 100, 5000, 9000 },
		.peer_timeout_ns = hit->stopped ? 400 * MS : 10000 * MS, .run = run, .arg = hit };
}

/* It was stopped and goes on: all that it can still write to it writes, as fast as it can. */
static int scribble(struct transport *t, size_t rank, const struct crew_config *c)
{
	for (uint64_t seq = 1;; seq++)
		for (size_t i = 0; i < SLOT_KINDS * EP_LANES; i++)
			for (size_t dst = 0; dst < c->world; dst++) {
				enum slot_kind k = (enum slot_kind)(i / EP_LANES);

				if (dst == rank)
					continue;
				memset(transport_slot(t, dst, k, i % EP_LANES), 0xee, c->bytes[k]);
				transport_post(t, dst, k, i % EP_LANES, seq % 200, c->bytes[k]);
			}
	return 0;
}

static int run_survive(struct transport *t, size_t rank, const struct crew_config *c)
{
	const struct hit *hit = c->arg;
	int64_t detected;
	struct rounds m;
	int rc;

	if (hit->at_once && ranks_has(&hit->victims, rank))
		raise(SIGSTOP);
	for (;;) {
		uint64_t epoch;

		if (rounds_begin(t, rank, &m))
			return 1;
		epoch = 1 + c->world - ranks_count(&m.members);
		if (epoch == 1 + hit->losses)
			break;
		do
			rc = rounds_one(t, rank, c, &m);
		while (!rc);
		if (rc != EP_BROKEN)
			return rc;
		if (ranks_has(&hit->victims, rank))
			return scribble(t, rank, c);
	}
	for (size_t i = 0; i < AFTER; i++) {
		rc = rounds_one(t, rank, c, &m);
		if (rc)
			return crew_fail(rank, "a round after the loss", rc, (long long)i);
		if (i == 0 && time_mono_ns() - atomic_load(&crew_me.lost_ns) > 2000 * MS)
			return crew_fail(rank, "slow to go on", 0, 0);
		if (hit->stopped)
			nap(10 * MS); /* long enough for what the stopped one does */
	}
	detected = atomic_load(&crew_me.lost_ns) - crew_shared->hit_ns;
	if (detected < (hit->stopped ? c->peer_timeout_ns / 2 : 0) ||
		detected > (hit->stopped ? 2 * c->peer_timeout_ns : 1000 * MS))
		return crew_fail(rank, "the loss was known after us", detected / 1000, 0);
	return 0;
}

static void test_kills(const char *kind, size_t world, size_t losses, int times)
{
	struct hit hit = { .losses = losses };
	struct crew_config c = crew_of(kind, world, &hit, run_survive);
	size_t bad = 0;

	for (int i = 0; i < times && !bad; i++) {
		struct crew crew;

		hit.victims = (struct ranks){ { 0 } };
		for (size_t k = 0; k < losses; k++)
			ranks_add(&hit.victims, (random_bits(5, (uint64_t)i) + k * 2) % world);
		crew_start(&crew, &c);
		nap((int64_t)(random_bits(6, (uint64_t)i) % 40) * MS);
		for (size_t r = ranks_next(&hit.victims, 0); r < world; r = ranks_next(&hit.victims, r + 1))
			crew_hit(&crew, r, SIGKILL);
		bad += crew_end(&crew, &hit.victims);
	}
	tap_ok(!bad, "%s: %zu of %zu killed at any moment, %d times: the others go on in a new epoch", kind, losses,
		world, times);
}

static void test_stop(const char *kind, bool at_once, int times)
{
	struct hit hit = { .losses = 1, .stopped = true, .at_once = at_once };
	struct crew_config c = crew_of(kind, 4, &hit, run_survive);
	size_t bad = 0;

	for (int i = 0; i < times && !bad; i++) {
		size_t victim = random_bits(7, (uint64_t)i) % 4;
		struct crew crew;

		hit.victims = (struct ranks){ { 0 } };
		ranks_add(&hit.victims, victim);
		crew_start(&crew, &c);
		nap(at_once ? 0 : (int64_t)(40 + random_bits(8, (uint64_t)i) % 40) * MS);
		crew_hit(&crew, victim, SIGSTOP);
		nap(3 * c.peer_timeout_ns / 2);
		kill(crew.pids[victim], SIGCONT);
		nap(400 * MS);
		kill(crew.pids[victim], SIGKILL);
		bad += crew_end(&crew, &hit.victims);
	}
	tap_ok(!bad, "%s: stopped %s: lost after the timeout; what it writes when it goes on disturbs nobody", kind,
		at_once ? "before an epoch began" : "in a round");
}

/* ---- started again ---- */

static void rank_begin(struct crew_rank *me, struct mesh **m, size_t rank)
{
	struct mesh_config mc = { .rank = rank, .world = 2, .peer_timeout_ns = 10000 * MS, .ops = &crew_ops,
		.ctx = me };
	struct transport_config tc = { .rank = rank, .world = 2, .bytes = { 100, 5000, 9000 } };
	struct ds_err err;

	*me = (struct crew_rank){ .lock = PTHREAD_MUTEX_INITIALIZER, .members = ranks_first(2), .epoch = 1 };
	if (mesh_new(&tc.mesh, &mc, &err) || transport_new(&me->t, "tcp", &tc, &err))
		tap_bail("%s", err.text);
	*m = tc.mesh;
}

static void rank_end(struct crew_rank *me, struct mesh *m)
{
	mesh_free(m);
	transport_free(me->t);
}

static void connect_ranks(struct mesh *a, struct mesh *b)
{
	int fd[2];

	if (socket_pair(fd, true))
		tap_bail("no pair of sockets");
	mesh_add(a, 1, fd[0]);
	mesh_add(b, 0, fd[1]);
}

/* All that a rank says in a round before it waits. */
static void post_all(struct transport *t, size_t to)
{
	for (size_t k = 0; k < SLOT_KINDS; k++)
		transport_post(t, to, (enum slot_kind)k, 0, 1, 90);
}

/* The fault: a rank that computed while another died, and came again, sent the new process what it had computed for the
 * old one; that took it for nonsense, and would have nothing to do with it. */
static void test_again(void)
{
	const struct ranks both = ranks_first(2);
	struct crew_rank a, old, new;
	struct mesh *ma, *mold, *mnew;
	struct ds_err err;
	bool good;

	rank_begin(&a, &ma, 0);
	rank_begin(&old, &mold, 1);
	connect_ranks(ma, mold);
	good = !transport_epoch(a.t, 1, &both, &err) && !transport_epoch(old.t, 1, &both, &err);
	post_all(old.t, 0);
	good = good && !transport_wait(a.t, SLOT_COMBINE, 0, 1, &(struct ranks){ { 2 } });
	rank_end(&old, mold);
	rank_begin(&new, &mnew, 1);
	while (!atomic_load(&a.lost_ns))
		nap(MS);
	connect_ranks(ma, mnew);
	post_all(a.t, 1);
	nap(100 * MS);
	tap_ok(good && !atomic_load(&new.lost_ns), "tcp: what was meant for a process that has died does not go to the "
		"next one%s%s", *new.why ? ": " : "", new.why);
	tap_ok(transport_wait(a.t, SLOT_VOTE, 0, 1, &both) == EP_BROKEN, "tcp: and the epoch is over");
	good = !transport_epoch(a.t, 2, &both, &err);
	transport_post(a.t, 1, SLOT_VOTE, 0, 1, 90);
	nap(20 * MS);
	good = good && !transport_epoch(new.t, 2, &both, &err) &&
		!transport_wait(new.t, SLOT_VOTE, 0, 1, &(struct ranks){ { 1 } });
	post_all(new.t, 0);
	good = good && !transport_wait(a.t, SLOT_COMBINE, 0, 1, &(struct ranks){ { 2 } });
	tap_ok(good, "tcp: the next epoch is one with the new process");
	rank_end(&a, ma);
	rank_end(&new, mnew);
}

/* ---- nonsense ---- */

static void no_message(void *ctx, size_t from, unsigned type, const void *data, size_t n, const int *fds, size_t count)
{
	(void)ctx, (void)from, (void)type, (void)data, (void)n, (void)fds, (void)count;
}

static void no_lost(void *ctx, size_t from, const struct ds_err *why)
{
	(void)ctx, (void)from, (void)why;
}

static const struct mesh_ops no_ops = { no_message, NULL, NULL, no_lost, NULL };

struct alone { struct mesh *mesh; struct transport *t; };

static struct alone alone_start(const char *kind)
{
	struct mesh_config mc = { .rank = 0, .world = 2, .peer_timeout_ns = 1000 * MS, .ops = &no_ops };
	struct transport_config tc = { .rank = 0, .world = 2, .bytes = { 100, 5000, 9000 } };
	struct alone a;
	struct ds_err err;

	if (mesh_new(&a.mesh, &mc, &err))
		tap_bail("%s", err.text);
	tc.mesh = a.mesh;
	if (transport_new(&a.t, kind, &tc, &err))
		tap_bail("%s", err.text);
	return a;
}

static void alone_stop(struct alone *a)
{
	mesh_free(a->mesh);
	transport_free(a->t);
}

struct offer { uint64_t epoch, world, bytes[SLOT_KINDS]; }; /* as shm sends it */

static int memory(size_t bytes, unsigned seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, seals))
		tap_bail("memfd");
	return fd;
}

static void test_offers(void)
{
	size_t before = open_fds(), total;
	struct alone a = alone_start("shm");
	struct offer o = { 1, 2, { 100, 5000, 9000 } };
	struct ranks both = ranks_first(2);
	size_t during = open_fds(), n;
	struct ds_err err;
	int pipes[2], rc;
	int64_t when;

	total = a.t->layout.total;
	transport_message_in(a.t, 1, MESH_TRANSPORT_FIRST, &o, sizeof(o) - 1, (int[]){ memory(total, F_SEAL_SHRINK),
		eventfd(0, 0) }, 2);
	transport_message_in(a.t, 1, MESH_TRANSPORT_FIRST, &o, sizeof(o), (int[]){ memory(total, F_SEAL_SHRINK) }, 1);
	transport_message_in(a.t, 1, MESH_TRANSPORT_LAST, &o, sizeof(o), (int[]){ memory(total, F_SEAL_SHRINK),
		eventfd(0, 0) }, 2);
	if (pipe(pipes))
		tap_bail("pipe");
	close(pipes[0]);
	transport_message_in(a.t, 1, MESH_TRANSPORT_FIRST, &o, sizeof(o), (int[]){ memory(total, F_SEAL_SHRINK),
		pipes[1] }, 2);
	tap_is_int((long long)open_fds(), (long long)during, "shm: what is no offer is not taken");

	o.bytes[1]++;
	transport_message_in(a.t, 1, MESH_TRANSPORT_FIRST, &o, sizeof(o), (int[]){ memory(total, F_SEAL_SHRINK),
		eventfd(0, 0) }, 2);
	rc = transport_epoch(a.t, 1, &both, &err);
	tap_ok(rc == DS_PROTO && strstr(err.text, "rank 1 has messages of 5001 bytes"), "%s", err.text);
	o.bytes[1]--;
	for (uint64_t e = 2; e < 5; e++) {
		o.epoch = e;
		transport_message_in(a.t, 1, MESH_TRANSPORT_FIRST, &o, sizeof(o), (int[]){ e == 4 ?
			open("/dev/null", O_RDWR) : memory(e == 2 ? total : total - 4096, e == 2 ? 0 : F_SEAL_SHRINK),
			eventfd(0, 0) }, 2);
		rc = transport_epoch(a.t, e, &both, &err);
		tap_ok(rc == DS_PROTO && strstr(err.text, "not its receive memory"), "%s (%s)", err.text,
			e == 2 ? "could shrink" : e == 3 ? "too short" : "no file");
	}
	o.epoch = 9; /* an early one, and an earlier one after it */
	transport_message_in(a.t, 1, MESH_TRANSPORT_FIRST, &o, sizeof(o), (int[]){ memory(total, F_SEAL_SHRINK),
		eventfd(0, 0) }, 2);
	o.epoch = 8;
	transport_message_in(a.t, 1, MESH_TRANSPORT_FIRST, &o, sizeof(o), (int[]){ memory(total - 1, F_SEAL_SHRINK),
		eventfd(0, 0) }, 2);
	tap_ok(!transport_epoch(a.t, 9, &both, &err), "an offer of a later epoch is kept");
	slot_post(own_slot(a.t, 1, SLOT_DISPATCH, 0), a.t->own, a.t->bell, SLOT_DISPATCH, 1, SIZE_MAX, 0);
	ranks_del(&both, 0);
	rc = transport_wait(a.t, SLOT_DISPATCH, 0, 1, &both);
	transport_message(a.t, 1, SLOT_DISPATCH, 0, &n, &when);
	tap_ok(!rc && n == 5000, "a size that a peer made up is not believed");
	alone_stop(&a);
	tap_is_int((long long)open_fds(), (long long)before, "no descriptor is left open");
}

static void test_puts(void)
{
	enum { KEEP, DROP, REFUSE };
	static const struct { struct mesh_put h; int want; const char *what; } cases[] = {
		{ { 3, 1, SLOT_VOTE, 0, 100 }, KEEP, "a vote" },
		{ { 3, 1, SLOT_COMBINE, 1, 9000 }, KEEP, "a full message" },
		{ { 3, 1, SLOT_COMBINE, 1, 9001 }, REFUSE, "more than fits" },
		{ { 3, 1, SLOT_VOTE, 0, UINT64_MAX }, REFUSE, "far more" },
		{ { 2, 1, SLOT_VOTE, 0, UINT64_MAX }, REFUSE, "far more, of an epoch that is over" },
		{ { 3, 1, SLOT_KINDS, 0, 1 }, REFUSE, "an unknown kind" },
		{ { 3, 1, UINT32_MAX, 0, 1 }, REFUSE, "an unknown kind" },
		{ { 3, 1, SLOT_VOTE, EP_LANES, 1 }, REFUSE, "an unknown lane" },
		{ { 3, 0, SLOT_VOTE, 0, 1 }, REFUSE, "a number that was" },
		{ { 2, 9, SLOT_DISPATCH, 0, 1 }, DROP, "an epoch that is over" },
		{ { 4, 1, SLOT_VOTE, 0, 100 }, KEEP, "a vote of the next epoch" },
		{ { 4, 1, SLOT_DISPATCH, 0, 100 }, REFUSE, "a dispatch of the next epoch" },
	};
	struct alone a = alone_start("tcp"), b = alone_start("shm");
	struct ranks both = ranks_first(2);
	struct ds_err err;

	if (transport_epoch(a.t, 3, &both, &err))
		tap_bail("%s", err.text);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		void *p = transport_put_in(a.t, 1, &cases[i].h);
		int did = p == MESH_REFUSED ? REFUSE : p ? KEEP : DROP;

		tap_ok(did == cases[i].want, "tcp: a put: %s", cases[i].what);
	}
	tap_ok(transport_put_in(a.t, 0, &cases[0].h) == MESH_REFUSED, "tcp: from itself");
	tap_ok(transport_put_in(b.t, 1, &cases[0].h) == MESH_REFUSED, "shm takes no puts");
	alone_stop(&a);
	alone_stop(&b);
}

static void test_new(void)
{
	struct transport_config tc = { .rank = 0, .world = 2, .bytes = { 100, SIZE_MAX / 16, SIZE_MAX / 8 } };
	struct transport *t;
	struct ds_err err;

	tap_ok(transport_new(&t, "carrier-pigeon", &tc, &err) == DS_USAGE && !t, "%s", err.text);
	tap_ok(transport_new(&t, "tcp", &tc, &err) == DS_CONFIG && !t, "%s", err.text);
	tc.bytes[2] = SIZE_MAX;
	tap_ok(transport_new(&t, "shm", &tc, &err) == DS_CONFIG && !t, "%s", err.text);
	transport_free(NULL);
}

int main(void)
{
	for (size_t i = 0; i < 2; i++) { /* before this process has threads */
		test_kills(kinds[i], 4, 1, 25);
		test_kills(kinds[i], 5, 2, 12);
		test_kills(kinds[i], 2, 1, 8);
		test_stop(kinds[i], false, 3);
		test_stop(kinds[i], true, 2);
	}
	test_again();
	test_offers();
	test_puts();
	test_new();
	return tap_done();
}
