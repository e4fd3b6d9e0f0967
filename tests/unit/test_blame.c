/*
 * A rank that sends what makes no sense: it is lost to the others, by name and once, and they go on with the results
 * that they would have had; it comes back, and is kept out for longer the more often it does so.
 */
#include <fcntl.h>
#include <stdatomic.h>

#include "base/log.h"
#include "base/time.h"
#include "ep/ep_impl.h"
#include "ep/unit_impl.h"
#include "walks.h"

enum { WORLD = 3, BAD = 2, STEPS = 12, SPOILT = 5 };

enum nonsense { SOUND, TOKENS_MANY, PAIRS_MORE, EXPERT_NONE, OUTPUTS_FEW, BALLOT_SHORT, BALLOT_KIND, BALLOT_ROWS,
	BALLOT_FLOOR, BALLOT_PLAN, NONSENSES };

static const struct { const char *what, *says; } cases[NONSENSES] = {
	{ "nothing", "" },
	{ "a dispatch of too many tokens", "it sent a dispatch of " },
	{ "a dispatch with a pair more than its tokens have", "it sent a dispatch of " },
	{ "a dispatch to an expert that is not there", "it sent a dispatch of " },
	{ "a combine of another size", "it returned 80 bytes for " },
	{ "a short ballot", "it sent a ballot of 8 bytes that makes no sense" },
	{ "a ballot for a step of an unknown kind", "it sent a ballot of 160 bytes that makes no sense" },
	{ "a ballot for 4294967295 rows", "it sent a ballot of 160 bytes that makes no sense" },
	{ "a ballot with newcomers from the end of time", "it sent a ballot of 160 bytes that makes no sense" },
	{ "a ballot with a plan from the end of time", "it sent a ballot of 160 bytes that makes no sense" },
};

struct trial {
	struct way w;
	enum nonsense what;
	uint64_t to;            /* the ranks that it is sent to */
	int64_t until_ns;       /* steps go on until then, the bad one's always spoilt; 0: STEPS of them, one spoilt */
	struct result { uint64_t sum; _Atomic uint64_t losses, joins, steps; } *results; /* [WORLD] */
	char errors[80];
};

static const struct trial *trial;
static size_t spoilt, now_at; /* how often; the step */

static bool due(void)
{
	return trial->until_ns || (now_at == SPOILT && !spoilt);
}

/* Outputs that nobody has rows for are looked at by nobody. */
static bool looked_at(const struct ep *ep, size_t lane)
{
	for (size_t r = 0; r < WORLD; r++)
		if (r != BAD && (trial->to >> r & 1) && ranks_has(&ep->step.members, r) && !ep->step.rows[r][lane])
			return false;
	return true;
}

/* What was to leave for these ranks is written over, or another message sent. */
static bool spoil(struct ep *ep, enum slot_kind kind, size_t lane)
{
	struct unit *u = ep_unit(ep);
	struct transport *t = unit_transport(u);
	bool outputs = trial->what == OUTPUTS_FEW;
	uint64_t seq;

	if (ranks_count(&ep->step.members) == 1 || !due() || kind != (outputs ? SLOT_COMBINE : SLOT_DISPATCH) ||
		trial->what >= BALLOT_SHORT || (outputs && !looked_at(ep, lane)))
		return false;
	spoilt++;
	seq = kind == SLOT_COMBINE ? unit_seq(u, kind, lane) : 0;
	for (size_t r = 0; r < WORLD; r++) {
		uint32_t *head = transport_slot(t, r, kind, lane);

		if (r == BAD || !(trial->to >> r & 1) || !ranks_has(&ep->step.members, r))
			continue;
		if (kind == SLOT_COMBINE)
			transport_post(t, r, kind, lane, seq, OUT);
		else if (trial->what == TOKENS_MANY)
			head[0] = TOKENS + 1;
		else if (trial->what == PAIRS_MORE || !head[1])
			head[1]++;
		else
			head[2 + head[0]] = 1000;
	}
	return kind == SLOT_COMBINE;
}

/* A vote of this rank's, instead of the unit's. */
static void spoil_vote(struct ep *ep)
{
	struct unit *u = ep_unit(ep);
	struct unit_ballot b = { .kind = UNIT_MAIN, .rows = { TOKENS } };
	size_t lane = u->turn++ % EP_LANES;
	uint64_t seq = unit_seq(u, SLOT_VOTE, lane);

	b.kind = trial->what == BALLOT_KIND ? UNIT_MTP + 1 : b.kind;
	b.rows[1] = trial->what == BALLOT_ROWS ? UINT32_MAX : 0;
	b.floor = trial->what == BALLOT_FLOOR ? UINT64_MAX : 0;
	b.prepared = trial->what == BALLOT_PLAN ? UINT64_MAX : 0;
	for (size_t r = 0; r < WORLD; r++) {
		if (r == BAD)
			continue;
		memcpy(transport_slot(u->transport, r, SLOT_VOTE, lane), &b, sizeof(b));
		transport_post(u->transport, r, SLOT_VOTE, lane, seq, trial->what == BALLOT_SHORT ? 8 : sizeof(b));
	}
	spoilt++;
}

static int one_step(struct ep *ep, const struct way *w, size_t rank, size_t step, uint64_t *sum, struct ds_err *err)
{
	size_t rows[EP_LANES] = { rows_of(w, step, rank, 0), rows_of(w, step, rank, 1) };
	struct ep_step s;
	uint64_t mine;
	int rc;

	now_at = step;
	if (rank == BAD && trial->what >= BALLOT_SHORT && due())
		spoil_vote(ep);
	do {
		mine = *sum;
		rc = ep_begin(ep, UNIT_MAIN, rows, false, &s, err);
		for (size_t n = 0; n < LAYERS && !rc; n++)
			rc = layer(ep, w, rank, step, n, &s, &mine, err);
	} while (rc == EP_BROKEN);
	*sum = mine;
	return rc;
}

/* Takes part in what others still have to do. */
static int attend(struct ep *ep, const struct way *w, size_t rank, struct ds_err *err)
{
	static const size_t none[EP_LANES];
	struct ep_step s = { .over = false };
	uint64_t nothing = 0;
	int rc = 0;

	while (!rc && !s.over) {
		rc = ep_begin(ep, UNIT_NONE, none, true, &s, err);
		for (size_t n = 0; n < LAYERS && !rc && s.kind; n++)
			rc = layer(ep, w, rank, w->steps, n, &s, &nothing, err);
		rc = rc == EP_BROKEN ? 0 : rc;
	}
	return rc;
}

static void look(struct ep *ep, struct result *seen)
{
	struct unit_stat s;

	unit_stat(ep_unit(ep), &s);
	seen->losses = s.losses;
	seen->joins = s.joins;
	seen->steps++;
}

static int rank_main(size_t rank, void *arg)
{
	struct result *seen;
	struct ds_err err;
	struct ep *ep;
	int fd, rc;

	trial = arg;
	seen = &trial->results[rank];
	fd = open(trial->errors, O_WRONLY | O_CREAT | O_APPEND, 0600);
	dup2(fd, 2);
	close(fd);
	log_init(rank == BAD ? "bad" : "sound", 0, LOG_WARN);
	walk_spoil = rank == BAD && trial->what ? spoil : NULL;
	rc = open_ep(&trial->w, rank, &ep, &err);
	if (rc)
		goto out;
	for (size_t i = 0; i < trial->w.steps && !rc && (!trial->until_ns || time_mono_ns() < trial->until_ns); i++) {
		rc = one_step(ep, &trial->w, rank, i, &seen->sum, &err);
		look(ep, seen);
	}
	rc = rc ? rc : attend(ep, &trial->w, rank, &err);
	ep_close(ep);
out:
	if (rc)
		tap_diag("rank %zu: %s", rank, rc == EP_BROKEN ? "the unit broke" : err.text);
	return rc;
}

static bool run(struct trial *t, const char *transport, char said[1 << 14])
{
	static unsigned runs;
	ssize_t n;
	bool good;
	int fd;

	t->w = (struct way){ .transport = transport, .world = WORLD, .experts = 10, .redundant = 2, .lanes = 1,
		.steps = t->until_ns ? SIZE_MAX : STEPS, .load = EVEN, .seed = 3 };
	snprintf(t->w.addr, sizeof(t->w.addr), "unix:/tmp/blame-%d-%u", (int)getpid(), runs);
	snprintf(t->errors, sizeof(t->errors), "/tmp/blame-%d-%u.errors", (int)getpid(), runs++);
	t->results = ranks_share(WORLD * sizeof(*t->results));
	good = ranks_run(WORLD, rank_main, t) == 0;
	fd = open(t->errors, O_RDONLY);
	n = fd < 0 ? 0 : read(fd, said, (1 << 14) - 1);
	said[n > 0 ? n : 0] = 0;
	close(fd);
	unlink(t->errors);
	return good;
}

static size_t count(const char *text, const char *what)
{
	size_t n = 0;

	for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
		n++;
	return n;
}

static void test_once(const char *transport, enum nonsense what, uint64_t to, const struct trial *clean)
{
	struct trial t = { .what = what, .to = to };
	char said[1 << 14], why[200];
	bool good = run(&t, transport, said), same = true;
	size_t gone = count(said, "sound: unit: rank 2 has gone"), named;

	snprintf(why, sizeof(why), "sound: unit: rank 2 has gone (%s", cases[what].says);
	named = count(said, why);
	for (size_t r = 0; r < WORLD; r++) /* alone the bad one computes the same */
		same &= t.results[r].sum == clean->results[r].sum;
	good &= gone == 2 && named >= 1 && count(said, "sound: unit: rank 0") + count(said, "sound: unit: rank 1") == 0;
	tap_ok(good && same && t.results[0].losses == 1 && t.results[1].losses == 1,
		"%s: %s%s: it alone is lost, once, and the same comes out", transport, cases[what].what,
		to == 1 ? " to one rank" : "");
	if (!good || !same)
		tap_diag("%d %s", (int)same, said);
}

/* Seconds of a rank that never does anything else. */
static void test_always(const char *transport, enum nonsense what)
{
	struct trial t = { .what = what, .to = 3, .until_ns = time_mono_ns() + 4500000000 };
	char said[1 << 14];
	bool good = run(&t, transport, said);
	int losses = (int)t.results[0].losses;

	good &= losses >= 2 && losses <= 4 && count(said, "sound: unit: rank 2 has gone (it ") >= 2;
	tap_ok(good && t.results[0].steps > 50,
		"%s: %s, always: lost %d times in 4.5 s, while the others make %d steps", transport, cases[what].what,
		losses, (int)t.results[0].steps);
	if (!good)
		tap_diag("%s", said);
}

int main(void)
{
	static const char *const transports[] = { "shm", "tcp" };

	for (size_t i = 0; i < 2; i++) {
		struct trial clean = { .what = SOUND };
		char said[1 << 14];

		tap_ok(run(&clean, transports[i], said) && !*said, "%s: sound ranks", transports[i]);
		for (enum nonsense what = TOKENS_MANY; what < NONSENSES; what++)
			test_once(transports[i], what, 3, &clean);
		test_once(transports[i], TOKENS_MANY, 1, &clean);
		test_once(transports[i], OUTPUTS_FEW, 1, &clean);
		test_always(transports[i], i ? OUTPUTS_FEW : PAIRS_MORE);
	}
	return tap_done();
}
