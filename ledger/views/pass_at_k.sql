-- One row per evaluation run, policy version, rule set and k: the chance that one of k attempts
-- passes, without bias, and that all k do; only over tasks with at least k valid attempts.
CREATE OR REPLACE VIEW pass_at_k AS
WITH sized AS (
    SELECT
        run_id,
        policy_version,
        rule_set,
        task_id,
        slots,
        valid,
        passed,
        least(max(slots) OVER (PARTITION BY run_id, policy_version, rule_set), 10000) AS most
    FROM task_outcomes
),
-- Every k up to 16, then powers of two, and the most that a task has.
listed AS (
    SELECT
        * EXCLUDE (most),
        unnest(list_filter(
            range(1, most + 1), lambda k: k <= 16 OR (k & (k - 1)) = 0 OR k = most
        )) AS k
    FROM sized
),
-- Of n attempts c passed: 1 - C(n - c, k) / C(n, k) = 1 - product of 1 - k / (n - i) over the c first
-- i from 0, and C(c, k) / C(n, k) = product of (c - i) / (n - i) over the k first: no large number.
estimated AS (
    SELECT
        run_id,
        policy_version,
        rule_set,
        task_id,
        k,
        slots,
        valid,
        CASE
            WHEN valid < k THEN NULL
            WHEN valid - passed < k THEN 1.0
            ELSE 1 - coalesce(list_aggregate(
                list_transform(range(passed), lambda i: 1 - k / (valid - i)), 'product'
            ), 1)
        END AS any_of_k,
        CASE
            WHEN valid < k THEN NULL
            WHEN passed < k THEN 0.0
            ELSE list_aggregate(
                list_transform(range(k), lambda i: (passed - i) / (valid - i)), 'product'
            )
        END AS all_of_k,
        CASE
            WHEN slots < k THEN NULL
            WHEN slots - passed < k THEN 1.0
            ELSE 1 - coalesce(list_aggregate(
                list_transform(range(passed), lambda i: 1 - k / (slots - i)), 'product'
            ), 1)
        END AS any_of_k_published
    FROM listed
)
SELECT
    run_id,
    policy_version,
    rule_set,
    k,
    avg(any_of_k) AS pass_at_k,
    avg(all_of_k) AS pass_hat_k,
    -- As leaderboards count: what is missing failed, over tasks with at least k slots.
    avg(any_of_k_published) AS published,
    count(*) AS tasks,
    count(any_of_k) AS tasks_counted,
    -- Tasks of the scope with fewer than k valid attempts: the mean says nothing of them.
    coalesce(list(task_id ORDER BY task_id) FILTER (any_of_k IS NULL), []) AS tasks_left_out
FROM estimated
GROUP BY run_id, policy_version, rule_set, k;
