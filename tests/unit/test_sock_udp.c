/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Datagrams that have to wait: the gate before anything is built, credit in true bytes with the
 * last reference, AGAIN that is followed by a call, waiters in order.
 */
#include "tests/unit/lab_udp.h"

#include "net/netmem.h"

/* Credit: charged at commit, back with the completion and not before, in true bytes. */
static void test_credit(void **state)
{
    struct app app;
    struct sock_udp_stats stats;
    (void)state;
    open_with(&app, 4000);
    assert_int_equal(send_filled(&app, 1000, 1), SOCK_OK);
    unsigned sent = 1;
    while (send_filled(&app, 1000, 1) == SOCK_OK) {
        sent++;
    }
    sock_udp_stats(app.sock, &stats);
    uint64_t each = stats.charged_bytes / sent;
    assert_true(each > 1000 + 42 + 12);
    assert_int_equal(sent, (4000 + each - 1) / each); /* the last may begin below the limit */
    assert_int_equal(stats.again, 1);
    assert_false(virtio_net_tx_stopped(net_device(), 0));
    lab_pass();
    model_take(&lab.dev, MODEL_TX);
    lab_pass();
    assert_int_equal(app.writable, 0); /* submitted is not consumed */
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.credited_bytes, 0);
    model_complete(&lab.dev, 1);
    lab_pass();
    assert_int_equal(app.writable, 1);
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.credited_bytes, each);
    assert_int_equal(stats.writable, 1);
    lab_pass();
    assert_int_equal(app.writable, 1); /* once for each AGAIN */
    lab_serve();
    close_at_rest(app.sock);
}

/* The ring is the limit: AGAIN before anything is built, nothing lost, a call at the wake. Field
 * case 21: a full ring is would-block at the socket, one stop and one wake. */
static void test_ring_stops(void **state)
{
    struct app app;
    struct virtio_net_tx_stats tx;
    struct sock_udp_stats stats;
    (void)state;
    open_with(&app, 1 << 24);
    assert_int_equal(send_filled(&app, 100, 1), SOCK_OK);
    unsigned sent = 1;
    while (send_filled(&app, 100, 1) == SOCK_OK) {
        sent++;
        assert_true(sent < 64);
    }
    assert_true(virtio_net_tx_stopped(net_device(), 0));
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.queued, sent);
    assert_int_equal(stats.charged_bytes % sent, 0); /* the refused one was not charged */
    lab_pass();
    assert_int_equal(app.writable, 0);
    lab_serve();
    assert_int_equal(app.writable, 1);
    assert_int_equal(lab.n_frames, sent);
    virtio_net_tx_stats(net_device(), 0, &tx);
    assert_int_equal(tx.stops, 1);
    assert_int_equal(tx.wakes, 1);
    close_at_rest(app.sock);
}

/* Those who wait are called in the order in which they began to. */
static void test_waiters_in_order(void **state)
{
    static const unsigned order[] = {2, 0, 3, 1};
    struct app app[4];
    (void)state;
    open_default();
    for (unsigned i = 0; i < 4; i++) {
        app_open(&app[i], 1 << 24);
    }
    while (send_filled(&app[order[0]], 100, 1) == SOCK_OK) {
    }
    for (unsigned i = 1; i < 4; i++) {
        assert_int_equal(send_filled(&app[order[i]], 100, 1), SOCK_AGAIN);
    }
    app_next_order = 0;
    lab_serve();
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(app[order[i]].writable, 1);
        assert_int_equal(app[order[i]].order, i + 1);
        sock_close(app[order[i]].sock, false);
    }
    lab_close();
}

/* A socket that is closed by another's callback is not called any more. */
static struct app *to_close;

static void close_other(struct sock *sock, void *arg)
{
    (void)sock;
    ((struct app *)arg)->writable++;
    if (to_close != NULL) {
        sock_close(to_close->sock, false);
        to_close = NULL;
    }
}

static void test_closed_while_waiting(void **state)
{
    static const struct sock_ops closing = {.writable = close_other};
    struct app first = {0}, second;
    (void)state;
    open_default();
    first.sock = sock_udp_open(&closing, &first, 1 << 24);
    sock_udp_connect(first.sock, LAB_PEER_IP, 5000);
    app_open(&second, 1 << 24);
    while (send_filled(&first, 100, 1) == SOCK_OK) {
    }
    assert_int_equal(send_filled(&second, 100, 1), SOCK_AGAIN);
    to_close = &second;
    lab_serve();
    assert_int_equal(first.writable, 1);
    assert_int_equal(second.writable, 0);
    sock_close(first.sock, false);
    lab_serve();
    lab_assert_ledger();
    lab_close();
}

/* What a socket wrote before is still there, and it is told so. */
static void test_fresh(void **state)
{
    struct app app;
    uint8_t *payload;
    bool fresh;
    (void)state;
    open_with(&app, 65536);
    assert_int_equal(sock_udp_reserve(app.sock, 600, &payload, &fresh), SOCK_OK);
    assert_true(fresh);
    memset(payload, 0x77, 600);
    assert_int_equal(sock_udp_commit(app.sock), SOCK_OK);
    lab_serve();
    assert_int_equal(sock_udp_reserve(app.sock, 600, &payload, &fresh), SOCK_OK);
    assert_false(fresh);
    assert_int_equal(payload[0], 0x77);
    assert_int_equal(payload[599], 0x77);
    sock_udp_cancel(app.sock);
    assert_int_equal(sock_udp_reserve(app.sock, 600, &payload, &fresh), SOCK_OK);
    assert_true(fresh); /* cancelled half written */
    assert_int_equal(sock_udp_commit(app.sock), SOCK_OK);
    lab_serve();
    assert_int_equal(sock_udp_reserve(app.sock, 601, &payload, &fresh), SOCK_OK);
    assert_true(fresh);
    sock_udp_cancel(app.sock);
    close_at_rest(app.sock);
}

/* The queue stopped between reserve and commit: nothing was built, nothing is lost, AGAIN keeps its
 * promise. */
static void test_stop_before_commit(void **state)
{
    struct app app, other;
    uint8_t *payload;
    bool fresh;
    (void)state;
    open_with(&app, 65536);
    app_open(&other, 1 << 24);
    assert_int_equal(sock_udp_reserve(app.sock, 600, &payload, &fresh), SOCK_OK);
    while (send_filled(&other, 100, 1) == SOCK_OK) {
    }
    assert_int_equal(sock_udp_commit(app.sock), SOCK_AGAIN);
    lab_serve();
    assert_int_equal(app.writable, 1);
    assert_int_equal(send_filled(&app, 600, 1), SOCK_OK);
    lab_serve();
    sock_close(app.sock, false);
    close_at_rest(other.sock);
}

/* The pool is empty: AGAIN, and a call when something came back. Each allocation fails once. */
static void test_pool_exhausted(void **state)
{
    (void)state;
    for (unsigned nth = 1; nth < 8; nth++) {
        struct app app;
        open_with(&app, 65536);
        netmem_model_fail_in = nth;
        unsigned again = 0, sent = 0;
        while (sent < 5) {
            enum sock_result result = send_filled(&app, 2000, 1); /* two fragments */
            if (result == SOCK_AGAIN) {
                again++;
                lab_serve();
                netmem_free(netmem_alloc(64)); /* somebody gives back */
                lab_serve();
                assert_int_equal(app.writable, again);
            } else {
                sent++;
                lab_serve();
            }
        }
        netmem_model_fail_in = 0;
        sock_close(app.sock, false);
        lab_serve();
        lab_assert_ledger();
        lab_close();
    }
}

/* The link is down: as a full ring. */
static void test_link_down(void **state)
{
    struct app app;
    (void)state;
    open_with(&app, 1 << 24);
    model_set_link(&lab.dev, false);
    lab_pass();
    assert_int_equal(send_filled(&app, 100, 1), SOCK_AGAIN);
    lab_serve();
    assert_int_equal(app.writable, 0);
    model_set_link(&lab.dev, true);
    lab_serve();
    assert_int_equal(app.writable, 1);
    sock_close(app.sock, false);
    lab_close();
}

/* The device is gone with datagrams in flight: aborted, credited, balanced. */
static void test_abort(void **state)
{
    struct app app;
    struct sock_udp_stats stats;
    (void)state;
    open_with(&app, 1 << 24);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(send_filled(&app, 100, 1), SOCK_OK);
    }
    lab_pass();
    model_needs_reset(&lab.dev);
    lab_serve();
    sock_udp_stats(app.sock, &stats);
    assert_int_equal(stats.queued, 5);
    assert_int_equal(stats.aborted, 5);
    lab_assert_ledger();
    assert_int_equal(send_filled(&app, 100, 1), SOCK_OK); /* the device came back */
    lab_serve();
    sock_close(app.sock, false);
    lab_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_ring_stops),
        cmocka_unit_test(test_waiters_in_order),
        cmocka_unit_test(test_closed_while_waiting),
        cmocka_unit_test(test_fresh),
        cmocka_unit_test(test_stop_before_commit),
        cmocka_unit_test(test_pool_exhausted),
        cmocka_unit_test(test_link_down),
        cmocka_unit_test(test_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
